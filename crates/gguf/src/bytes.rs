//! Cheaply cloned read-only bytes: a range of a memory-mapped file, of an owned buffer or of the binary itself.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A reference-counted, immutable byte range.
///
/// Cloning and slicing never copy the bytes. A range of a memory map keeps the whole map alive.
#[derive(Clone)]
pub struct SharedBytes {
    storage: Storage,
    range: Range<usize>,
}

#[derive(Clone)]
enum Storage {
    Mapped(Arc<memmap2::Mmap>),
    Owned(Arc<Vec<u8>>),
    Static(&'static [u8]),
}

impl SharedBytes {
    /// Wraps a whole memory map.
    pub fn from_mmap(map: Arc<memmap2::Mmap>) -> Self {
        let range = 0..map.len();
        Self { storage: Storage::Mapped(map), range }
    }

    /// Wraps bytes that live as long as the program (a file embedded in the binary).
    pub fn from_static(bytes: &'static [u8]) -> Self {
        Self { storage: Storage::Static(bytes), range: 0..bytes.len() }
    }

    /// The sub-range `range` of these bytes, or `None` when it does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Self { storage: self.storage.clone(), range: start..start + range.len() })
    }

    /// Whether the bytes are pages of a file, which the operating system can drop and read again.
    pub fn is_mapped(&self) -> bool {
        matches!(self.storage, Storage::Mapped(_))
    }

    /// The memory map these bytes belong to, and where in it they lie.
    pub fn mapping(&self) -> Option<(&Arc<memmap2::Mmap>, Range<usize>)> {
        match &self.storage {
            Storage::Mapped(map) => Some((map, self.range.clone())),
            _ => None,
        }
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { storage: Storage::Owned(Arc::new(bytes)), range }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.storage {
            Storage::Mapped(map) => map,
            Storage::Owned(bytes) => bytes,
            Storage::Static(bytes) => bytes,
        };
        &all[self.range.clone()]
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.len())
    }
}
