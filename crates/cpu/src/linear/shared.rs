//! Memory that the threads of one phase share.

use std::cell::UnsafeCell;
use std::marker::PhantomData;

/// A mutable slice of which several threads write disjoint parts.
#[derive(Clone, Copy)]
pub(super) struct Disjoint<'a, T> {
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
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), _borrow: PhantomData }
    }

    /// The `len` elements from `at`.
    ///
    /// # Safety
    /// No two live results may overlap.
    ///
    /// # Panics
    /// When the part reaches beyond the slice.
    #[inline]
    pub(super) unsafe fn range(&self, at: usize, len: usize) -> &'a mut [T] {
        assert!(at <= self.len && len <= self.len - at, "part {at}+{len} of {} elements", self.len);
        // SAFETY: in bounds by the assertion, unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

/// One value for each thread of the pool.
pub(super) struct PerThread<T>(Vec<UnsafeCell<T>>);

// SAFETY: a value is only reached by the thread it belongs to.
unsafe impl<T: Send> Sync for PerThread<T> {}

impl<T> Default for PerThread<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Default> PerThread<T> {
    /// Makes sure that there is a value for each of `n` threads.
    pub(super) fn ensure(&mut self, n: usize) {
        if self.0.len() < n {
            self.0.resize_with(n, Default::default);
        }
    }

    /// The value of `thread`.
    ///
    /// # Safety
    /// Only one thread may use the index at a time, and it may hold one result at a time.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn get(&self, thread: usize) -> &mut T {
        // SAFETY: exclusive by the caller's promise.
        unsafe { &mut *self.0[thread].get() }
    }
}
