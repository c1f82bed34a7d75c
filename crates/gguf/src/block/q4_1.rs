//! Q4_1: 32 elements of 4 bits with one scale and a minimum.

use bytemuck::{Pod, Zeroable};

use super::q4_0::pack_nibbles;
use super::search::{Affine, FINE_SWEEP, affine, affine_by_range};
use super::{Half, narrow, widen};

/// `x = d * q + m`. Bytes: `d` f16, `m` f16, `qs` 16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockQ4_1 {
    pub d: Half,
    pub m: Half,
    pub qs: [u8; 16],
}

impl BlockQ4_1 {
    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 32]) {
        let (d, m) = (widen(self.d), widen(self.m));
        for (j, q) in self.qs.into_iter().enumerate() {
            out[j] = d * f32::from(q & 15) + m;
            out[j + 16] = d * f32::from(q >> 4) + m;
        }
    }
    /// Encodes 32 elements, by search when weights of the errors are given.
    pub fn encode(x: &[f32; 32], weights: Option<&[f32; 32]>) -> Self {
        let Affine { scale, offset, codes } = match weights {
            Some(weights) => affine(x, weights, 15, &FINE_SWEEP),
            None => affine_by_range(x, 15),
        };
        Self { d: narrow(scale), m: narrow(-offset), qs: pack_nibbles(&codes) }
    }
}
