//! Kernels for x86-64 with AVX2 (with FMA and F16C) and with AVX-512 (F, BW, VL, DQ, VNNI).
//!
//! Helpers are `#[inline(always)]` without features of their own, so that they become part of the entry point of
//! either instruction set; only the entry points carry `#[target_feature]`. All of them are unsafe for the same
//! reason: the caller has checked the features (holding an [`super::Isa`] proves it) and pointers reach as far as
//! the function's text says.
// One contract covers these functions; an unsafe block around every intrinsic would only repeat it.
#![allow(unsafe_op_in_unsafe_fn)]

mod decode256;
mod decode32;
pub(super) mod float;
pub(super) mod gemm;
pub(super) mod gemv;
mod micro_avx2;
mod micro_vnni;
mod pack;
pub(super) mod quantize;
mod simd;
