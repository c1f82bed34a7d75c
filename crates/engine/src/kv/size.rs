//! What a cache takes.

use lapidary_backend::{KvFormat, KvPoolSpec};

use super::BLOCK_LEN;
use crate::model::{CacheGroup, Config};

/// Bytes of keys and values of a model's sequences in given formats.
#[derive(Clone, Debug)]
pub struct KvSize {
    groups: Vec<(Option<usize>, usize)>,
}

impl KvSize {
    /// Sizes for a model whose keys and values are stored in these formats.
    pub fn new(config: &Config, k_format: KvFormat, v_format: KvFormat) -> Self {
        let group = |g: &CacheGroup| (g.window, g.pool_spec(k_format, v_format).cell_bytes());
        Self { groups: config.cache_groups.iter().map(group).collect() }
    }

    /// Bytes of one position in all layers.
    pub fn per_position(&self) -> usize {
        self.groups.iter().map(|&(_, bytes)| bytes).sum()
    }

    /// Bytes of one position in the layers with a sliding window, and in those without.
    pub fn by_kind(&self) -> (usize, usize) {
        let of = |sliding: bool| self.groups.iter().filter(|g| g.0.is_some() == sliding).map(|g| g.1).sum();
        (of(true), of(false))
    }

    /// Most bytes that the blocks of one sequence of `length` positions take while it grows by up to `batch` rows at a
    /// time: sliding layers hold their window, one position more, the batch, and what fills the blocks at both ends.
    pub fn of_sequence(&self, length: usize, batch: usize) -> usize {
        let bytes = |&(window, bytes): &(Option<usize>, usize)| {
            let positions = window.map_or(length, |w| length.min(w + 1 + batch + BLOCK_LEN));
            positions.div_ceil(BLOCK_LEN) * BLOCK_LEN * bytes
        };
        self.groups.iter().map(bytes).sum()
    }

    /// The longest sequence, up to `most` positions, that fits `budget` bytes; 0 when not even one position does.
    pub fn longest(&self, budget: usize, most: usize, batch: usize) -> usize {
        let (mut fits, mut too_long) = (0, most + 1);
        while too_long - fits > 1 {
            let middle = fits + (too_long - fits) / 2;
            if self.of_sequence(middle, batch) <= budget { fits = middle } else { too_long = middle }
        }
        fits
    }
}

impl CacheGroup {
    /// The group's pool in given formats.
    pub fn pool_spec(&self, k_format: KvFormat, v_format: KvFormat) -> KvPoolSpec {
        KvPoolSpec {
            layers: self.layers,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            k_format,
            v_format,
            block_len: BLOCK_LEN,
        }
    }
}
