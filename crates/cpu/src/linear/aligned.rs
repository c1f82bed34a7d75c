//! Growable storage aligned to cache lines.

use bytemuck::{Pod, Zeroable};

/// One cache line, the unit of allocation.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A vector of plain numbers that begins on a cache line and only ever grows.
#[derive(Clone, Default)]
pub(super) struct AlignedVec {
    lines: Vec<Line>,
}

impl AlignedVec {
    /// Makes room for `len` elements of `T` and returns them; old content is not kept meaningful.
    pub(super) fn ensure<T: Pod>(&mut self, len: usize) -> &mut [T] {
        let bytes = len.checked_mul(size_of::<T>()).expect("scratch larger than the address space");
        let lines = bytes.div_ceil(size_of::<Line>());
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0; 64]));
        }
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..len]
    }

    /// The first `len` elements of `T`.
    pub(super) fn get<T: Pod>(&self, len: usize) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..len]
    }
}
