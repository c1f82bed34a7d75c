//! Key/value blocks in memory.
//!
//! A block holds for each layer and head `[keys of block_len cells, their scales, values of block_len cells, their
//! scales]`, so that attention of one head streams through memory. Vectors are padded to whole groups of 32
//! elements. Scales (of the TurboQuant formats) lie one after the other for all cells: `[scale][cell]`.

mod encode;
pub(crate) mod rotate;
pub(crate) mod stored;

use std::ops::Range;

use lapidary_backend::kv::turbo::{self, NotFinite};
use lapidary_backend::{BackendError, HeadLayout, KvFormat, KvPoolSpec};

use crate::buffer::AlignedBytes;
use crate::linear::isa::Isa;
use crate::simd::LANES;
use encode::{Encode, Encoded};
use stored::{F16, F32, GROUP, Stored, Tq4, Tq5, Tq6, Tq8};

pub(crate) use encode::MAX_BLOCKS;

/// Which of the two vectors of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Keys,
    Values,
}

/// Blocks of keys and values of one layer group.
pub struct CpuKvPool {
    spec: KvPoolSpec,
    /// Absent where the memory was given back.
    blocks: Vec<Option<AlignedBytes>>,
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
        self.spec.head_dim.next_multiple_of(GROUP)
    }

    pub(crate) fn format(&self, part: Part) -> KvFormat {
        match part {
            Part::Keys => self.spec.k_format,
            Part::Values => self.spec.v_format,
        }
    }

    /// Chunks of a vector that share a scale; all of them where there are none.
    pub(crate) fn block_chunks(&self, part: Part) -> usize {
        match self.format(part).turbo_bits() {
            None => self.padded_dim() / LANES,
            Some(_) => turbo::block_dim(self.spec.head_dim).next_multiple_of(GROUP) / LANES,
        }
    }

    /// Bytes of a vector's elements.
    fn code_bytes(&self, part: Part) -> usize {
        self.format(part).code_bytes(self.padded_dim())
    }

    /// Scales and offsets of a vector.
    pub(crate) fn scale_count(&self, part: Part) -> usize {
        self.format(part).scale_count(self.spec.head_dim)
    }

    /// Bytes of one part of a layer's head in a block.
    fn part_bytes(&self, part: Part) -> usize {
        self.spec.block_len * (self.code_bytes(part) + size_of::<f32>() * self.scale_count(part))
    }

    /// Where a part of a layer's head begins in a block.
    fn part_offset(&self, part: Part, layer: usize, head: usize) -> usize {
        assert!(layer < self.spec.layers && head < self.spec.kv_heads);
        let (k, v) = (self.part_bytes(Part::Keys), self.part_bytes(Part::Values));
        let begin = (layer * self.spec.kv_heads + head) * (k + v);
        match part {
            Part::Keys => begin,
            Part::Values => begin + k,
        }
    }

    fn block_bytes(&self) -> usize {
        self.spec.layers * self.spec.kv_heads * (self.part_bytes(Part::Keys) + self.part_bytes(Part::Values))
    }

    /// Makes sure that there are `n_blocks` blocks.
    pub(crate) fn reserve(&mut self, n_blocks: usize) -> Result<(), BackendError> {
        while self.blocks.len() < n_blocks {
            self.blocks.push(Some(self.new_block()?));
        }
        Ok(())
    }

    fn new_block(&self) -> Result<AlignedBytes, BackendError> {
        AlignedBytes::new(self.block_bytes(), "a block of keys and values")
    }

    /// Gives the memory of blocks back until they are written again.
    pub(crate) fn free(&mut self, blocks: &[u32]) {
        blocks.iter().for_each(|&block| self.blocks[block as usize] = None);
    }

    /// Takes memory for a block that is about to be written.
    fn materialize(&mut self, block: usize) -> Result<(), BackendError> {
        if self.blocks[block].is_none() {
            self.blocks[block] = Some(self.new_block()?);
        }
        Ok(())
    }

    /// A block's memory.
    ///
    /// # Panics
    /// When it was given back: nobody may read what nobody wrote.
    fn bytes(&self, block: usize) -> &AlignedBytes {
        self.blocks[block].as_ref().expect("a block that was written")
    }

    fn bytes_mut(&mut self, block: usize) -> &mut AlignedBytes {
        self.blocks[block].as_mut().expect("a block that was materialized")
    }

    /// Where the elements of a cell's vector lie in its block.
    fn codes_range(&self, part: Part, layer: usize, head: usize, cell: usize) -> Range<usize> {
        let bytes = self.code_bytes(part);
        let begin = self.part_offset(part, layer, head) + cell % self.spec.block_len * bytes;
        begin..begin + bytes
    }

    /// Where scale `index` of all cells lies in a block.
    fn scale_range(&self, part: Part, layer: usize, head: usize, index: usize) -> Range<usize> {
        let len = self.spec.block_len;
        let begin =
            self.part_offset(part, layer, head) + len * (self.code_bytes(part) + size_of::<f32>() * index);
        begin..begin + size_of::<f32>() * len
    }

    /// All vectors of `part` of one layer's head in one block, `block_len` times the groups of a padded head.
    #[inline]
    pub(crate) fn vectors<T: Stored>(&self, part: Part, layer: usize, head: usize, block: usize) -> &[T] {
        let begin = self.part_offset(part, layer, head);
        let len = self.spec.block_len * self.code_bytes(part);
        bytemuck::cast_slice(&self.bytes(block).get::<u8>()[begin..begin + len])
    }

    /// Scale `index` of all cells of a block.
    #[inline]
    pub(crate) fn scales(&self, part: Part, layer: usize, head: usize, block: usize, index: usize) -> &[f32] {
        let range = self.scale_range(part, layer, head, index);
        bytemuck::cast_slice(&self.bytes(block).get::<u8>()[range])
    }

    fn vector_mut<T: Stored>(&mut self, part: Part, layer: usize, head: usize, cell: usize) -> &mut [T] {
        let range = self.codes_range(part, layer, head, cell);
        bytemuck::cast_slice_mut(&mut self.bytes_mut(cell / self.spec.block_len).get_mut::<u8>()[range])
    }

    /// Stores the keys and values of each row of `qkv` in its cell.
    ///
    /// # Errors
    /// [`NotFinite`](BackendError::NotFinite) for the first row with a vector that its format cannot hold.
    pub(crate) fn store(
        &mut self,
        isa: Isa,
        qkv: &[f32],
        layout: HeadLayout,
        (cells, positions): (&[u32], &[u32]),
        layer: usize,
    ) -> Result<(), BackendError> {
        let dim = layout.head_dim;
        for &cell in cells {
            self.materialize(cell as usize / self.spec.block_len)?;
        }
        for ((row, &cell), &position) in qkv.chunks_exact(layout.stride()).zip(cells).zip(positions) {
            for head in 0..layout.kv_heads {
                let key = &row[layout.k_offset() + head * dim..][..dim];
                let value = &row[layout.v_offset() + head * dim..][..dim];
                self.write(isa, Part::Keys, (layer, head, cell as usize), key)
                    .map_err(|_| BackendError::NotFinite { part: "key", layer, position })?;
                self.write(isa, Part::Values, (layer, head, cell as usize), value)
                    .map_err(|_| BackendError::NotFinite { part: "value", layer, position })?;
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        isa: Isa,
        part: Part,
        (layer, head, cell): (usize, usize, usize),
        from: &[f32],
    ) -> Result<(), NotFinite> {
        match self.format(part) {
            KvFormat::F32 => F32::write(from, self.vector_mut(part, layer, head, cell)),
            KvFormat::F16 => F16::write(from, self.vector_mut(part, layer, head, cell)),
            KvFormat::Tq8 => self.encode::<Tq8>(isa, part, (layer, head, cell), from)?,
            KvFormat::Tq6 => self.encode::<Tq6>(isa, part, (layer, head, cell), from)?,
            KvFormat::Tq5 => self.encode::<Tq5>(isa, part, (layer, head, cell), from)?,
            KvFormat::Tq4 => self.encode::<Tq4>(isa, part, (layer, head, cell), from)?,
        }
        Ok(())
    }

    fn encode<T: Encoded>(
        &mut self,
        isa: Isa,
        part: Part,
        (layer, head, cell): (usize, usize, usize),
        from: &[f32],
    ) -> Result<(), NotFinite> {
        let scales = isa.run(Encode { x: from, out: self.vector_mut::<T>(part, layer, head, cell) })?;
        let n_blocks = from.len() / turbo::block_dim(from.len());
        for index in 0..self.scale_count(part) {
            let range = self.scale_range(part, layer, head, index);
            let block_len = self.spec.block_len;
            let block = self.bytes_mut(cell / block_len).get_mut::<u8>();
            let all: &mut [f32] = bytemuck::cast_slice_mut(&mut block[range]);
            all[cell % block_len] =
                if index < n_blocks { scales.scales[index] } else { scales.offsets[index - n_blocks] };
        }
        Ok(())
    }

    /// The bytes of a block.
    pub(crate) fn block(&self, block: u32) -> &[u8] {
        self.bytes(block as usize).get()
    }

    /// Overwrites a block.
    pub(crate) fn import(&mut self, block: u32, bytes: &[u8]) -> Result<(), BackendError> {
        self.materialize(block as usize)?;
        let to: &mut [u8] = self.bytes_mut(block as usize).get_mut();
        if to.len() != bytes.len() {
            return Err(BackendError::BlockSize { expected: to.len(), found: bytes.len() });
        }
        to.copy_from_slice(bytes);
        Ok(())
    }

    /// Copies cells `(from, to)` in all layers, in order.
    pub(crate) fn copy(&mut self, cells: &[(u32, u32)]) -> Result<(), BackendError> {
        let len = self.spec.block_len;
        for &(from, to) in cells {
            let (from, to) = (from as usize, to as usize);
            self.materialize(to / len)?;
            for layer in 0..self.spec.layers {
                for head in 0..self.spec.kv_heads {
                    for part in [Part::Keys, Part::Values] {
                        let codes = |cell| self.codes_range(part, layer, head, cell);
                        let (source, target) = (codes(from), codes(to));
                        self.copy_bytes((from / len, source), (to / len, target.start));
                        for index in 0..self.scale_count(part) {
                            let begin = self.scale_range(part, layer, head, index).start;
                            let at = |cell: usize| begin + cell % len * size_of::<f32>();
                            let source = at(from)..at(from) + size_of::<f32>();
                            self.copy_bytes((from / len, source), (to / len, at(to)));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies bytes between places given as block and offset.
    fn copy_bytes(&mut self, from: (usize, Range<usize>), to: (usize, usize)) {
        if from.0 == to.0 {
            self.bytes_mut(from.0).get_mut::<u8>().copy_within(from.1, to.1);
            return;
        }
        let blocks = self.blocks.get_disjoint_mut([from.0, to.0]).expect("two different blocks of the pool");
        let [source, target] = blocks.map(|block| block.as_mut().expect("a block that was written"));
        target.get_mut::<u8>()[to.1..to.1 + from.1.len()].copy_from_slice(&source.get::<u8>()[from.1]);
    }
}

#[cfg(test)]
mod tests;
