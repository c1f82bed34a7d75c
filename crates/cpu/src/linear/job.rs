//! One matrix product as the kernels see it.

use super::activations::Activations;
use super::shared::Disjoint;
use super::{RowMap, WeightMatrix};

/// A matrix, the activation rows it is multiplied with, and where the results go.
pub(super) struct Job<'a> {
    pub(super) weights: WeightMatrix<'a>,
    pub(super) activations: &'a Activations,
    /// The activations as they came, `[n, cols]`.
    pub(super) x: &'a [f32],
    pub(super) map: RowMap<'a>,
    pub(super) out: Disjoint<'a, f32>,
    pub(super) out_stride: usize,
    pub(super) out_col: usize,
}

impl<'a> Job<'a> {
    /// Where output row `row` takes the results of `n` weight rows from `first`.
    ///
    /// # Safety
    /// No other thread may hold the same part.
    #[inline]
    pub(super) unsafe fn output(&self, row: usize, first: usize, n: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.out.range(row * self.out_stride + self.out_col + first, n) }
    }

    /// Activation row `row` as it came.
    pub(super) fn x_row(&self, row: usize) -> &'a [f32] {
        &self.x[row * self.weights.cols..][..self.weights.cols]
    }
}

impl<'a> WeightMatrix<'a> {
    /// The bytes of a row.
    pub(super) fn row_bytes(&self) -> usize {
        self.bytes.len() / self.rows.max(1)
    }

    /// The bytes of row `row`.
    pub(super) fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.row_bytes()..][..self.row_bytes()]
    }

    /// The blocks of `T` rows from `first`, of which only `n` need exist: the last one stands in for the others.
    #[inline]
    pub(super) fn tile<B: bytemuck::Pod, const T: usize>(&self, first: usize, n: usize) -> [&'a [B]; T] {
        assert!(n > 0 && first + n <= self.rows);
        std::array::from_fn(|j| bytemuck::cast_slice(self.row(first + j.min(n - 1))))
    }
}
