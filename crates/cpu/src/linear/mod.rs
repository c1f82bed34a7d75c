//! Matrix products: activation rows times weight matrices of any GGML type, read from their stored bytes.
//!
//! `out[r][n] = sum over k of weights[n][k] * x[r][k]`.
//!
//! # The arithmetic
//! A result depends on its weight row and its activation row only: not on the other rows of the batch, the split
//! over threads, or the instruction set. Every kernel therefore follows the same order of roundings, which
//! `portable.rs` and `float.rs` state in scalar code:
//!
//! - **Rounded activations** ([`ActivationMode::Q8`], quantised weights). Activations are rounded to 8 bits in the
//!   blocks of the weight type, 32 or 256 columns (`activations.rs`). For each block, in ascending order, with the
//!   block's scale `d`, minimum `m`, activation scale `s` and the exact integer sum `i` of products of codes
//!   (for superblocks: with the integer scales of the sub-blocks and the shifts of the activations' groups of 32,
//!   all of which fits 31 bits for every type):
//!   `acc = fma(f32(i), d * s, acc)`; then, where the type has minimums, for blocks of 32
//!   `acc = fma(m, s * f32(sum of activation codes), acc)` and for superblocks, with the exact integer sum `j` of
//!   sub-block minimums times sums of activation codes, `acc = fma(f32(j), -dmin * s, acc)`.
//! - **Float activations** ([`ActivationMode::F32`], and float weights in either mode). The weight row is decoded
//!   to f32; column `k` goes to partial sum `k % 16` by a fused multiply-add, and the 16 sums are folded in halves.
//!
//! # The kernels
//! One activation row is multiplied with the stored layout directly, in tiles of eight weight rows whose partial
//! sums are added across so that a vector lane is a weight row. More activation rows are worth decoding a tile of
//! weight rows into per-thread scratch, over which register-blocked kernels run.

// What only the x86 kernels use is compiled, and checked, for other processors too.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_variables))]

mod activations;
mod aligned;
mod float;
mod format;
pub(crate) mod isa;
mod job;
mod portable;
mod schedule;
mod shared;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use lapidary_gguf::GgmlType;

use crate::pool::Pool;
use activations::{Activations, Forms};
use aligned::AlignedVec;
use format::{for_block32, for_block256};
pub use isa::Isa;
use isa::Level;
use job::Job;
use shared::{Disjoint, PerThread};

/// Whether activations may be rounded to 8 bits before they meet quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ActivationMode {
    /// Rounded for quantised weights, as the GGML formats intend.
    #[default]
    Q8,
    /// Kept in 32-bit floats; quantised weights are decoded.
    F32,
}

/// A matrix that does not have the bytes its shape asks for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a {rows} by {cols} matrix of {ty} does not take {bytes} bytes")]
pub struct MatrixError {
    /// Element type.
    pub ty: GgmlType,
    /// Rows asked for.
    pub rows: usize,
    /// Columns asked for.
    pub cols: usize,
    /// Bytes given.
    pub bytes: usize,
}

/// A weight matrix in its stored form: `rows` outputs of `cols` inputs, row after row.
#[derive(Clone, Copy, Debug)]
pub struct WeightMatrix<'a> {
    ty: GgmlType,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

impl<'a> WeightMatrix<'a> {
    /// Views `bytes` as a matrix.
    ///
    /// # Errors
    /// When `cols` is no multiple of the type's block or `bytes` is not exactly the matrix.
    pub fn new(ty: GgmlType, rows: usize, cols: usize, bytes: &'a [u8]) -> Result<Self, MatrixError> {
        let expected = ty.row_bytes(cols).and_then(|row| row.checked_mul(rows));
        if expected != Some(bytes.len()) {
            return Err(MatrixError { ty, rows, cols, bytes: bytes.len() });
        }
        Ok(Self { ty, rows, cols, bytes })
    }

    /// Element type.
    pub fn ty(&self) -> GgmlType {
        self.ty
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The rows `rows` as a matrix of their own, for example one expert of a stack.
    ///
    /// # Panics
    /// When the range reaches beyond the matrix.
    pub fn slice_rows(&self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        let bytes = &self.bytes[rows.start * self.row_bytes()..rows.end * self.row_bytes()];
        Self { rows: rows.len(), bytes, ..*self }
    }
}

/// Which activation rows a matrix is multiplied with, and to which output rows their results go.
#[derive(Clone, Copy, Debug)]
pub enum RowMap<'a> {
    /// Activation row `r` gives output row `r`, for the first so many rows.
    Identity(usize),
    /// Pairs of activation row and output row, such as the rows routed to one expert.
    Pairs(&'a [(u32, u32)]),
}

impl RowMap<'_> {
    /// How many rows the map has.
    pub fn len(&self) -> usize {
        match self {
            Self::Identity(n) => *n,
            Self::Pairs(pairs) => pairs.len(),
        }
    }

    /// Whether the map has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entry `i`: the activation row and the output row.
    #[inline]
    fn get(&self, i: usize) -> (usize, usize) {
        match self {
            Self::Identity(_) => (i, i),
            Self::Pairs(pairs) => (pairs[i].0 as usize, pairs[i].1 as usize),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.len()).map(|i| self.get(i))
    }
}

/// One of several matrices that are multiplied with the same activations.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// The matrix.
    pub weights: WeightMatrix<'a>,
    /// The column of an output row that takes the result of weight row 0.
    pub out_col: usize,
    /// The activation rows and their output rows.
    pub rows: RowMap<'a>,
}

/// Activation rows, `[n_rows, cols]` without gaps.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The numbers.
    pub x: &'a [f32],
    /// Rows.
    pub n_rows: usize,
    /// Numbers in a row.
    pub cols: usize,
}

/// Output rows.
#[derive(Debug)]
pub struct Output<'a> {
    /// The numbers; those no product writes stay as they are.
    pub data: &'a mut [f32],
    /// Numbers from the start of one row to the start of the next.
    pub stride: usize,
}

/// Memory that products reuse: rounded activations, decoded tiles of each thread, the list of tasks.
#[derive(Default)]
pub struct Workspace {
    activations: Activations,
    threads: PerThread<Scratch>,
    tasks: Vec<schedule::Task>,
    claims: Vec<schedule::Claim>,
}

/// Scratch of one thread.
#[derive(Default)]
struct Scratch {
    packed: AlignedVec,
    acc: AlignedVec,
    floats: AlignedVec,
}

/// How products are computed.
#[derive(Clone, Copy)]
pub struct Linear<'a> {
    /// The threads.
    pub pool: &'a Pool,
    /// The kernels.
    pub isa: Isa,
    /// What is done to the activations.
    pub mode: ActivationMode,
}

impl Linear<'_> {
    /// Computes all `products` of `input` in one parallel phase.
    ///
    /// `out[out_row * stride + out_col + n] = sum over k of weights[n][k] * x[activation_row][k]` for every pair of
    /// rows of every product. Matrices may differ in type and rows; a product without rows costs nothing.
    ///
    /// # Panics
    /// When a matrix has other columns than the input, a row or column lies outside, or two products (or two
    /// pairs) write the same output.
    pub fn run(&self, products: &[Product], input: Input, out: Output, workspace: &mut Workspace) {
        let Workspace { activations, threads, tasks, claims } = workspace;
        assert_eq!(input.x.len(), input.n_rows * input.cols, "activations of {} rows", input.n_rows);
        schedule::check(products, &input, &out, claims);
        let forms = self.forms(products.iter().filter(|p| !p.rows.is_empty()).map(|p| p.weights.ty));
        activations.prepare(self.pool, self.isa, forms, input.x, (input.n_rows, input.cols));
        schedule::split(products, self.pool.n_threads(), schedule::tile_rows(self.isa), tasks);
        threads.ensure(self.pool.n_threads());

        let shared = Disjoint::new(out.data);
        let (activations, threads, tasks) = (&*activations, &*threads, &*tasks);
        self.pool.run(tasks.len(), |index, thread| {
            let task = &tasks[index];
            let product = &products[task.product];
            let job = Job {
                weights: product.weights,
                activations,
                x: input.x,
                map: product.rows,
                out: shared,
                out_stride: out.stride,
                out_col: product.out_col,
            };
            // SAFETY: the pool gives each thread its own index; tasks and, as checked, products write apart.
            unsafe { self.multiply(&job, task.rows.clone(), threads.get(thread)) };
        });
    }

    /// Writes the numbers that products of `x` with weights of type `ty` are made of to `out`: `x` itself, or what its
    /// rounded form stands for. False when they are not all finite.
    pub(crate) fn seen_by(
        &self,
        ty: GgmlType,
        x: &[f32],
        out: &mut Vec<f32>,
        workspace: &mut Workspace,
    ) -> bool {
        out.clear();
        let activations = &mut workspace.activations;
        activations.prepare(self.pool, self.isa, self.forms([ty]), x, (1, x.len()));
        match self.form(ty) {
            Form::Float => out.extend_from_slice(x),
            Form::Block32 => activations.row32(0).decode(out),
            Form::Block256 => activations.row256(0).decode(out),
        }
        out.iter().all(|v| v.is_finite())
    }

    /// The roundings that products with weights of these types need.
    fn forms(&self, types: impl IntoIterator<Item = GgmlType>) -> Forms {
        let mut forms = Forms::default();
        for ty in types {
            match self.form(ty) {
                Form::Float => {}
                Form::Block32 => forms.block32 = true,
                Form::Block256 => forms.block256 = true,
            }
        }
        forms
    }

    fn form(&self, ty: GgmlType) -> Form {
        match (self.mode, ty.block_len()) {
            (ActivationMode::F32, _) | (_, 1) => Form::Float,
            (_, 32) => Form::Block32,
            _ => Form::Block256,
        }
    }

    /// Computes weight rows `rows` of a job.
    ///
    /// # Safety
    /// No other thread writes the same outputs.
    unsafe fn multiply(&self, job: &Job, rows: Range<usize>, scratch: &mut Scratch) {
        let one = job.map.len() == 1;
        let ty = job.weights.ty;
        // SAFETY: outputs by the caller's promise; features because the machine has `self.isa`.
        unsafe {
            match (self.form(ty), self.isa.level()) {
                (Form::Float, Level::Portable) => float::rows(job, rows, scratch),
                (Form::Block32, Level::Portable) => for_block32!(ty, B => portable::block32::<B>(job, rows)),
                (Form::Block256, Level::Portable) => {
                    for_block256!(ty, B => portable::block256::<B>(job, rows))
                }
                #[cfg(target_arch = "x86_64")]
                (Form::Float, Level::Avx2) => x86::float::rows_avx2(job, rows, scratch),
                #[cfg(target_arch = "x86_64")]
                (Form::Float, Level::Avx512) => x86::float::rows_avx512(job, rows, scratch),
                #[cfg(target_arch = "x86_64")]
                (Form::Block32, Level::Avx2) if one => {
                    for_block32!(ty, B => x86::gemv::block32_avx2::<B>(job, rows))
                }
                #[cfg(target_arch = "x86_64")]
                (Form::Block32, Level::Avx512) if one => {
                    for_block32!(ty, B => x86::gemv::block32_vnni::<B>(job, rows))
                }
                #[cfg(target_arch = "x86_64")]
                (Form::Block32, Level::Avx2) => {
                    for_block32!(ty, B => x86::gemm::block32_avx2::<B>(job, rows, scratch))
                }
                #[cfg(target_arch = "x86_64")]
                (Form::Block32, Level::Avx512) => {
                    for_block32!(ty, B => x86::gemm::block32_vnni::<B>(job, rows, scratch))
                }
                #[cfg(target_arch = "x86_64")]
                (Form::Block256, Level::Avx2) if one => {
                    for_block256!(ty, B => x86::gemv::block256_avx2::<B>(job, rows))
                }
                #[cfg(target_arch = "x86_64")]
                (Form::Block256, Level::Avx512) if one => {
                    for_block256!(ty, B => x86::gemv::block256_vnni::<B>(job, rows))
                }
                #[cfg(target_arch = "x86_64")]
                (Form::Block256, Level::Avx2) => {
                    for_block256!(ty, B => x86::gemm::block256_avx2::<B>(job, rows, scratch))
                }
                #[cfg(target_arch = "x86_64")]
                (Form::Block256, Level::Avx512) => {
                    for_block256!(ty, B => x86::gemm::block256_vnni::<B>(job, rows, scratch))
                }
            }
        }
    }
}

/// How a weight type meets the activations.
enum Form {
    Float,
    Block32,
    Block256,
}
