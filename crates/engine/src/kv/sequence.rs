//! One sequence's block tables.

use super::BLOCK_LEN;
use super::allocator::Allocator;

/// The blocks of one sequence in one layer group.
#[derive(Clone, Debug, Default)]
pub struct BlockTable {
    /// Position block (position / [`BLOCK_LEN`]) of the first entry; earlier ones were released.
    pub first: usize,
    /// Block numbers in the pool.
    pub blocks: Vec<u32>,
}

impl BlockTable {
    /// One past the last position the table has room for.
    pub fn end(&self) -> usize {
        (self.first + self.blocks.len()) * BLOCK_LEN
    }

    /// Blocks that must be taken before `begin..end` can be written: new ones, and a copy of a shared first one.
    pub fn missing(&self, begin: usize, end: usize, allocator: &Allocator) -> usize {
        let grow = end.div_ceil(BLOCK_LEN).saturating_sub(self.end() / BLOCK_LEN);
        let first = self.blocks.get(begin / BLOCK_LEN - self.first);
        grow + usize::from(first.is_some_and(|&block| allocator.is_shared(block)))
    }

    /// Makes room for positions below `end`.
    pub fn grow(&mut self, end: usize, allocator: &mut Allocator) {
        while self.end() < end {
            self.blocks.push(allocator.allocate());
        }
    }

    /// The cell that holds `position`.
    pub fn cell(&self, position: usize) -> u32 {
        let block = self.blocks[position / BLOCK_LEN - self.first];
        block * BLOCK_LEN as u32 + (position % BLOCK_LEN) as u32
    }

    /// Drops the blocks that hold nothing below `length`.
    pub fn truncate(&mut self, length: usize, allocator: &mut Allocator) {
        let keep = length.div_ceil(BLOCK_LEN).saturating_sub(self.first).min(self.blocks.len());
        for block in self.blocks.drain(keep..) {
            allocator.release(block);
        }
    }

    /// Drops the blocks whose positions all lie below `first_needed`.
    pub fn release_before(&mut self, first_needed: usize, allocator: &mut Allocator) {
        let drop = (first_needed / BLOCK_LEN).saturating_sub(self.first).min(self.blocks.len());
        for block in self.blocks.drain(..drop) {
            allocator.release(block);
        }
        self.first += drop;
    }

    /// A second table on the same blocks.
    pub fn fork(&self, allocator: &mut Allocator) -> Self {
        self.blocks.iter().for_each(|&block| allocator.retain(block));
        self.clone()
    }

    /// Gives `position`'s block to this table alone. Returns the pair of blocks (old, new) whose contents must
    /// be copied when it was shared.
    pub fn make_unique(&mut self, position: usize, allocator: &mut Allocator) -> Option<(u32, u32)> {
        let entry = &mut self.blocks[position / BLOCK_LEN - self.first];
        let old = *entry;
        if !allocator.is_shared(old) {
            return None;
        }
        *entry = allocator.allocate();
        allocator.release(old);
        Some((old, *entry))
    }
}

/// A sequence: its length and one block table a layer group.
#[derive(Debug)]
pub struct Sequence {
    /// Committed positions.
    pub length: usize,
    /// Tables, in the order of the cache's groups.
    pub tables: Vec<BlockTable>,
}
