//! Key/value blocks in memory.
//!
//! A block holds `[layer][kv_head][keys of block_len cells, then values of block_len cells]`, so that attention of
//! one head streams through memory. Vectors are padded with zeros to a multiple of sixteen elements.

use half::f16;
use half::slice::HalfFloatSliceExt;
use lapidary_backend::{BackendError, HeadLayout, KvFormat, KvPoolSpec};

use crate::buffer::AlignedBytes;
use crate::simd::{LANES, Simd};

/// An element as it is stored.
pub(crate) trait Stored: bytemuck::Pod + Send + Sync {
    /// Whether an element takes less room, and more work to load, than an `f32`.
    const NARROW: bool;

    /// Sixteen elements as `f32`.
    fn load<S: Simd>(s: S, from: &[Self; LANES]) -> S::F;

    /// Rounds `from` to nearest.
    fn write(from: &[f32], to: &mut [Self]);
}

impl Stored for f32 {
    const NARROW: bool = false;

    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[Self; LANES]) -> S::F {
        s.load(from)
    }

    fn write(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

impl Stored for f16 {
    const NARROW: bool = true;

    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[Self; LANES]) -> S::F {
        s.load_f16(from)
    }

    fn write(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

/// Which of the two vectors of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Keys,
    Values,
}

/// Blocks of keys and values of one layer group.
pub struct CpuKvPool {
    spec: KvPoolSpec,
    blocks: Vec<AlignedBytes>,
}

impl CpuKvPool {
    /// A pool without blocks.
    pub(crate) fn new(spec: KvPoolSpec) -> Self {
        Self { spec, blocks: Vec::new() }
    }

    /// Shape and formats.
    pub fn spec(&self) -> &KvPoolSpec {
        &self.spec
    }

    /// Elements of a stored vector, padding included.
    pub(crate) fn padded_dim(&self) -> usize {
        self.spec.head_dim.next_multiple_of(LANES)
    }

    /// Bytes of a stored vector.
    fn vector_bytes(&self, part: Part) -> usize {
        let format = match part {
            Part::Keys => self.spec.k_format,
            Part::Values => self.spec.v_format,
        };
        format.vector_bytes(self.padded_dim())
    }

    /// Where the vectors of `part` of a layer's head begin in a block.
    fn part_offset(&self, part: Part, layer: usize, head: usize) -> usize {
        assert!(layer < self.spec.layers && head < self.spec.kv_heads);
        let (k, v) = (self.vector_bytes(Part::Keys), self.vector_bytes(Part::Values));
        let begin = (layer * self.spec.kv_heads + head) * self.spec.block_len * (k + v);
        match part {
            Part::Keys => begin,
            Part::Values => begin + self.spec.block_len * k,
        }
    }

    fn block_bytes(&self) -> usize {
        let vectors = self.vector_bytes(Part::Keys) + self.vector_bytes(Part::Values);
        self.spec.layers * self.spec.kv_heads * self.spec.block_len * vectors
    }

    /// Makes sure that there are `n_blocks` blocks.
    pub(crate) fn reserve(&mut self, n_blocks: usize) -> Result<(), BackendError> {
        while self.blocks.len() < n_blocks {
            self.blocks.push(AlignedBytes::new(self.block_bytes(), "a block of keys and values")?);
        }
        Ok(())
    }

    /// All vectors of `part` of one layer's head in one block, `block_len` times the padded head.
    #[inline]
    pub(crate) fn vectors<T: Stored>(
        &self,
        part: Part,
        layer: usize,
        head: usize,
        block: usize,
    ) -> &[[T; LANES]] {
        let elements: &[T] = self.blocks[block].get();
        let begin = self.part_offset(part, layer, head) / size_of::<T>();
        let len = self.spec.block_len * self.padded_dim();
        elements[begin..begin + len].as_chunks().0
    }

    fn vector_mut<T: Stored>(&mut self, part: Part, layer: usize, head: usize, cell: usize) -> &mut [T] {
        let begin = self.part_offset(part, layer, head) / size_of::<T>();
        let begin = begin + cell % self.spec.block_len * self.padded_dim();
        let dim = self.spec.head_dim;
        &mut self.blocks[cell / self.spec.block_len].get_mut()[begin..begin + dim]
    }

    /// Stores the keys and values of each row of `qkv` in its cell.
    pub(crate) fn store(&mut self, qkv: &[f32], layout: HeadLayout, cells: &[u32], layer: usize) {
        let dim = layout.head_dim;
        for (row, &cell) in qkv.chunks_exact(layout.stride()).zip(cells) {
            for head in 0..layout.kv_heads {
                let key = &row[layout.k_offset() + head * dim..][..dim];
                let value = &row[layout.v_offset() + head * dim..][..dim];
                self.write(Part::Keys, layer, head, cell as usize, key);
                self.write(Part::Values, layer, head, cell as usize, value);
            }
        }
    }

    fn write(&mut self, part: Part, layer: usize, head: usize, cell: usize, from: &[f32]) {
        let format = match part {
            Part::Keys => self.spec.k_format,
            Part::Values => self.spec.v_format,
        };
        match format {
            KvFormat::F32 => f32::write(from, self.vector_mut(part, layer, head, cell)),
            KvFormat::F16 => f16::write(from, self.vector_mut(part, layer, head, cell)),
        }
    }

    /// Copies cells `(from, to)` in all layers, in order.
    pub(crate) fn copy(&mut self, cells: &[(u32, u32)]) {
        let block_len = self.spec.block_len;
        for &(from, to) in cells {
            let (from, to) = (from as usize, to as usize);
            for layer in 0..self.spec.layers {
                for head in 0..self.spec.kv_heads {
                    for part in [Part::Keys, Part::Values] {
                        let (begin, len) = (self.part_offset(part, layer, head), self.vector_bytes(part));
                        let source = begin + from % block_len * len;
                        let target = begin + to % block_len * len;
                        self.copy_bytes((from / block_len, source), (to / block_len, target), len);
                    }
                }
            }
        }
    }

    /// Copies `len` bytes between places given as block and offset.
    fn copy_bytes(&mut self, from: (usize, usize), to: (usize, usize), len: usize) {
        if from.0 == to.0 {
            self.blocks[from.0].get_mut::<u8>().copy_within(from.1..from.1 + len, to.1);
            return;
        }
        let [source, target] =
            self.blocks.get_disjoint_mut([from.0, to.0]).expect("two different blocks of the pool");
        target.get_mut::<u8>()[to.1..to.1 + len].copy_from_slice(&source.get::<u8>()[from.1..from.1 + len]);
    }
}
