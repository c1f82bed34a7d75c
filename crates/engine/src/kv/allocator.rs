//! Reference-counted blocks of one pool.

/// Hands out block numbers and counts how many sequences use each.
#[derive(Debug, Default)]
pub struct Allocator {
    /// References to each block; 0 = free.
    references: Vec<u32>,
    free: Vec<u32>,
}

impl Allocator {
    /// Takes a free block, or a new one.
    pub fn allocate(&mut self) -> u32 {
        let block = self.free.pop().unwrap_or_else(|| {
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
        self.references.len() + n.saturating_sub(self.free.len())
    }

    /// Blocks in use.
    pub fn in_use(&self) -> usize {
        self.references.len() - self.free.len()
    }
}
