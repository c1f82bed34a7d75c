//! Q4_0: 32 elements of 4 bits with one scale.

use bytemuck::{Pod, Zeroable};

use super::search::{Scaled, symmetric, symmetric_by_extreme};
use super::{Half, narrow, widen};

/// `x = d * (q - 8)`. Bytes: `d` f16, `qs` 16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockQ4_0 {
    pub d: Half,
    pub qs: [u8; 16],
}

impl BlockQ4_0 {
    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 32]) {
        let d = widen(self.d);
        for (j, q) in self.qs.into_iter().enumerate() {
            out[j] = d * f32::from(i16::from(q & 15) - 8);
            out[j + 16] = d * f32::from(i16::from(q >> 4) - 8);
        }
    }
    /// Encodes 32 elements, by search when weights of the errors are given.
    pub fn encode(x: &[f32; 32], weights: Option<&[f32; 32]>) -> Self {
        let Scaled { scale, codes } = match weights {
            Some(weights) => symmetric(x, weights, 8),
            None => symmetric_by_extreme(x, 8),
        };
        Self { d: narrow(scale), qs: pack_nibbles(&codes) }
    }
}

/// Puts code `j` into the low and code `j + 16` into the high nibble of byte `j`.
pub(super) fn pack_nibbles(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| (codes[j] & 15) | (codes[j + 16] << 4))
}
