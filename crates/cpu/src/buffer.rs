//! Zeroed memory that begins on a cache line.

use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use lapidary_backend::BackendError;

/// Bytes of a cache line and of the widest vector.
const LINE: usize = 64;

/// Zeroed memory of a fixed length that begins on a cache line. Pages that nobody wrote to take no memory, as far
/// as the operating system hands out zero pages lazily.
pub(crate) struct AlignedBytes {
    /// Longer than asked for by a line, so that a line boundary can be picked. Never grows, so the memory stays
    /// where it is. 8-byte words make casts to every element type possible.
    words: Vec<u64>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] naming `what`.
    pub(crate) fn new(len: usize, what: &str) -> Result<Self, BackendError> {
        let out_of_memory =
            || BackendError::OutOfMemory { device: "cpu".into(), what: what.into(), needed: len };
        let n_words = len.checked_add(LINE).ok_or_else(out_of_memory)? / 8 + 1;
        // Asks once in a way that can fail; the zeroed allocation below would abort.
        drop(try_reserve(n_words).map_err(|_| out_of_memory())?);
        let words = vec![0u64; n_words];
        let start = words.as_ptr().cast::<u8>().align_offset(LINE);
        Ok(Self { words, start, len })
    }

    /// The memory as elements of `T`.
    #[inline]
    pub(crate) fn get<T: Pod>(&self) -> &[T] {
        let bytes: &[u8] = bytemuck::cast_slice(&self.words);
        bytemuck::cast_slice(&bytes[self.start..self.start + self.len])
    }

    /// The memory as elements of `T`, to write.
    #[inline]
    pub(crate) fn get_mut<T: Pod>(&mut self) -> &mut [T] {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        bytemuck::cast_slice_mut(&mut bytes[self.start..self.start + self.len])
    }
}

fn try_reserve(n_words: usize) -> Result<Vec<u64>, std::collections::TryReserveError> {
    let mut words = Vec::new();
    words.try_reserve_exact(n_words)?;
    Ok(words)
}

/// An activation buffer: zeroed `f32` memory that begins on a cache line.
pub struct CpuBuffer(AlignedBytes);

impl CpuBuffer {
    pub(crate) fn new(len: usize) -> Result<Self, BackendError> {
        let bytes = len.saturating_mul(size_of::<f32>());
        Ok(Self(AlignedBytes::new(bytes, "an activation buffer")?))
    }
}

impl Deref for CpuBuffer {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        self.0.get()
    }
}

impl DerefMut for CpuBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        self.0.get_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_begin_on_a_cache_line_and_are_zero() {
        for len in [0, 1, 7, 64, 1000, 1 << 20] {
            let buffer = CpuBuffer::new(len).unwrap();
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr() as usize % LINE, 0);
            assert!(buffer.iter().all(|&x| x == 0.0));
        }
    }

    #[test]
    fn a_size_beyond_memory_is_an_error() {
        for len in [usize::MAX, usize::MAX / 4, 1 << 60] {
            assert!(matches!(CpuBuffer::new(len), Err(BackendError::OutOfMemory { .. })));
        }
    }
}
