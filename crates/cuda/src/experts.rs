//! Expert choices on the device.

use crate::memory::Scratch;

/// Choices in a tile of `group_choices`.
pub(crate) const TILE: usize = 8;

/// Expert choices of the rows in flight.
#[derive(Default)]
pub struct CudaRouting {
    pub(crate) rows: usize,
    pub(crate) top_k: usize,
    pub(crate) n_experts: usize,
    pub(crate) experts: Scratch<u32>,
    pub(crate) weights: Scratch<f32>,
    /// Present when choices are grouped: experts of the tiles, choices of the tiles, and the number of tiles.
    pub(crate) tiles: Option<usize>,
    pub(crate) tile_experts: Scratch<u32>,
    pub(crate) tile_choices: Scratch<i32>,
    pub(crate) n_tiles: Scratch<u32>,
}

impl CudaRouting {
    /// Choices of all rows.
    pub(crate) fn choices(&self) -> usize {
        self.rows * self.top_k
    }

    /// Most tiles that grouping can give; `None` where a tile a choice is better.
    pub(crate) fn most_tiles(&self) -> Option<usize> {
        let choices = self.choices();
        (choices >= self.n_experts && self.rows > 1).then(|| choices / TILE + self.n_experts.min(choices))
    }
}
