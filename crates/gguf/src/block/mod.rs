//! GGML block formats: layouts, decoding and encoding, one format a file.
//!
//! A row of a quantised tensor is a sequence of blocks of 32 or 256 elements. Every block struct is plain bytes
//! with alignment 1, so a tensor's data can be viewed as a slice of blocks wherever it lies in a file
//! ([`bytemuck::cast_slice`]). Source of the layouts: GGML's `ggml-common.h`.

mod float;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod quantize;
mod search;

use bytemuck::Pod;
use half::f16;

pub use iq4_nl::{BlockIq4Nl, IQ4_VALUES};
pub use iq4_xs::BlockIq4Xs;
pub use mxfp4::{BlockMxfp4, MXFP4_VALUES, mxfp4_scale};
pub use q2_k::BlockQ2K;
pub use q3_k::BlockQ3K;
pub use q4_0::BlockQ4_0;
pub use q4_1::BlockQ4_1;
pub use q4_k::{BlockQ4K, scales_and_mins};
pub use q5_0::BlockQ5_0;
pub use q5_1::BlockQ5_1;
pub use q5_k::BlockQ5K;
pub use q6_k::BlockQ6K;
pub use q8_0::BlockQ8_0;
pub use quantize::{QuantizeError, quantize};

use crate::types::GgmlType;

/// A half-precision number stored as its two little-endian bytes.
pub type Half = [u8; 2];

/// Widens a stored half.
#[inline]
pub fn widen(half: Half) -> f32 {
    f16::from_le_bytes(half).to_f32()
}

/// Rounds to a half, ties to even; every NaN becomes the same, as GGML stores it.
#[inline]
pub fn narrow(x: f32) -> Half {
    if x.is_nan() {
        return (0x7e00 | ((x.to_bits() >> 16) as u16 & 0x8000)).to_le_bytes();
    }
    f16::from_f32(x).to_le_bytes()
}

/// Views `LEN` elements as `COUNT` groups of `SIZE`.
fn groups<const LEN: usize, const SIZE: usize, const COUNT: usize>(x: &[f32; LEN]) -> &[[f32; SIZE]; COUNT] {
    x.as_chunks().0.try_into().expect("LEN = SIZE * COUNT")
}

/// Bytes and elements that do not belong together.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{elements} elements of {ty} do not take {bytes} bytes")]
pub struct SizeMismatch {
    /// The format.
    pub ty: GgmlType,
    /// Elements to decode.
    pub elements: usize,
    /// Bytes given.
    pub bytes: usize,
}

/// Decodes `bytes` of format `ty` into `out`.
///
/// # Errors
/// [`SizeMismatch`] when `out` is not as long as what `bytes` encode.
pub fn dequantize(ty: GgmlType, bytes: &[u8], out: &mut [f32]) -> Result<(), SizeMismatch> {
    if ty.row_bytes(out.len()) != Some(bytes.len()) {
        return Err(SizeMismatch { ty, elements: out.len(), bytes: bytes.len() });
    }
    match ty {
        GgmlType::F32 => float::decode_f32(bytes, out),
        GgmlType::F16 => float::decode_f16(bytes, out),
        GgmlType::BF16 => float::decode_bf16(bytes, out),
        GgmlType::Q4_0 => blocks(bytes, out, BlockQ4_0::decode),
        GgmlType::Q4_1 => blocks(bytes, out, BlockQ4_1::decode),
        GgmlType::Q5_0 => blocks(bytes, out, BlockQ5_0::decode),
        GgmlType::Q5_1 => blocks(bytes, out, BlockQ5_1::decode),
        GgmlType::Q8_0 => blocks(bytes, out, BlockQ8_0::decode),
        GgmlType::IQ4_NL => blocks(bytes, out, BlockIq4Nl::decode),
        GgmlType::MXFP4 => blocks(bytes, out, BlockMxfp4::decode),
        GgmlType::Q2_K => blocks(bytes, out, BlockQ2K::decode),
        GgmlType::Q3_K => blocks(bytes, out, BlockQ3K::decode),
        GgmlType::Q4_K => blocks(bytes, out, BlockQ4K::decode),
        GgmlType::Q5_K => blocks(bytes, out, BlockQ5K::decode),
        GgmlType::Q6_K => blocks(bytes, out, BlockQ6K::decode),
        GgmlType::IQ4_XS => blocks(bytes, out, BlockIq4Xs::decode),
    }
    Ok(())
}

/// Decodes row `row` of a matrix whose rows have `out.len()` elements.
///
/// # Errors
/// [`SizeMismatch`] when `out` is no whole number of blocks.
///
/// # Panics
/// When the row lies outside `matrix`.
pub fn dequantize_row(ty: GgmlType, matrix: &[u8], row: usize, out: &mut [f32]) -> Result<(), SizeMismatch> {
    let elements = out.len();
    let bytes = ty.row_bytes(elements).ok_or(SizeMismatch { ty, elements, bytes: matrix.len() })?;
    dequantize(ty, &matrix[row * bytes..][..bytes], out)
}

fn blocks<T: Pod, const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn(&T, &mut [f32; N])) {
    let (chunks, _) = out.as_chunks_mut::<N>();
    for (block, chunk) in bytemuck::cast_slice(bytes).iter().zip(chunks) {
        decode(block, chunk);
    }
}
