//! Splitting work on rows over the pool.

use std::marker::PhantomData;

use crate::pool::Pool;

/// Elements below which waking the pool takes longer than the work.
const FORK_ABOVE: usize = 32 * 1024;

/// A mutable slice of which several threads write disjoint parts.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    _borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: threads only reach the elements through `range`, whose callers keep the parts disjoint.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Shares `slice` for the lifetime of its borrow.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), _borrow: PhantomData }
    }

    /// The `len` elements from `at`.
    ///
    /// # Safety
    /// No two live results may overlap.
    ///
    /// # Panics
    /// When the part reaches beyond the slice.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn range(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at, "part {at}+{len} of {} elements", self.len);
        // SAFETY: in bounds by the assertion, unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

/// Calls `work(first_row, rows)` for runs of whole rows of `out`, each `cols` long, so that all of `n_rows` are
/// covered once. `cost` is what a row takes, in elements; little work runs on the calling thread.
pub(crate) fn for_rows<T: Send>(
    pool: &Pool,
    out: &mut [T],
    (n_rows, cols): (usize, usize),
    cost: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let out = &mut out[..n_rows * cols];
    if n_rows * cost <= FORK_ABOVE || n_rows == 1 {
        return work(0, out);
    }
    // A few tasks a thread even out what the threads are held up by.
    let rows_each = n_rows.div_ceil(4 * pool.n_threads()).max(FORK_ABOVE / 4 / cost.max(1)).max(1);
    let out = Disjoint::new(out);
    pool.run(n_rows.div_ceil(rows_each), |task, _thread| {
        let first = task * rows_each;
        let n = rows_each.min(n_rows - first);
        // SAFETY: every row belongs to one task.
        work(first, unsafe { out.range(first * cols, n * cols) });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_visited_once_and_in_whole() {
        let pool = Pool::new(3);
        for (n_rows, cols) in [(0, 5), (1, 100_000), (2, 7), (513, 640), (9, 20_000)] {
            let mut out = vec![0u32; n_rows * cols + 3];
            for_rows(&pool, &mut out, (n_rows, cols), cols, |first, rows| {
                assert_eq!(rows.len() % cols, 0);
                for (i, row) in rows.chunks_exact_mut(cols).enumerate() {
                    row.iter_mut().for_each(|x| *x += (first + i) as u32 + 1);
                }
            });
            for r in 0..n_rows {
                assert!(out[r * cols..(r + 1) * cols].iter().all(|&x| x == r as u32 + 1));
            }
            assert!(out[n_rows * cols..].iter().all(|&x| x == 0));
        }
    }
}
