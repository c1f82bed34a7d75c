//! Reference-counted blocks of one pool.

/// Hands out block numbers and counts how many sequences use each.
#[derive(Debug, Default)]
pub struct Allocator {
    /// References to each block; 0 = free.
    references: Vec<u32>,
    /// Free blocks that hold memory.
    free: Vec<u32>,
    /// Free blocks whose memory was given back.
    empty: Vec<u32>,
}

impl Allocator {
    /// Takes a free block, or a new one.
    pub fn allocate(&mut self) -> u32 {
        let block = self.free.pop().or_else(|| self.empty.pop()).unwrap_or_else(|| {
            self.references.push(0);
            self.references.len() as u32 - 1
        });
        self.references[block as usize] = 1;
        block
    }

    /// Adds a reference.
    pub fn retain(&mut self, block: u32) {
        self.references[block as usize] += 1;
    }

    /// Drops a reference; a block without any is free.
    pub fn release(&mut self, block: u32) {
        let references = &mut self.references[block as usize];
        *references -= 1;
        if *references == 0 {
            self.free.push(block);
        }
    }

    /// Whether more than one sequence uses the block.
    pub fn is_shared(&self, block: u32) -> bool {
        self.references[block as usize] > 1
    }

    /// The size the pool must have before `n` more blocks are taken.
    pub fn capacity_for(&self, n: usize) -> usize {
        self.references.len() + n.saturating_sub(self.free.len() + self.empty.len())
    }

    /// Blocks in use.
    pub fn in_use(&self) -> usize {
        self.references.len() - self.free.len() - self.empty.len()
    }

    /// Blocks that hold memory.
    pub fn held(&self) -> usize {
        self.references.len() - self.empty.len()
    }

    /// Blocks that will hold memory when `n` more are taken.
    pub fn held_for(&self, n: usize) -> usize {
        self.held() + n.saturating_sub(self.free.len())
    }

    /// Gives up the memory of all free blocks but `keep`: their numbers.
    pub fn trim(&mut self, keep: usize) -> Vec<u32> {
        let trimmed: Vec<u32> = self.free.drain(keep.min(self.free.len())..).collect();
        self.empty.extend_from_slice(&trimmed);
        trimmed
    }
}
