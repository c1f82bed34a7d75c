//! Q5_1: 32 elements of 5 bits with one scale and a minimum.

use bytemuck::{Pod, Zeroable};

use super::q4_0::pack_nibbles;
use super::q5_0::{codes, pack_fifth_bits};
use super::search::{Affine, FINE_SWEEP, affine, affine_by_range};
use super::{Half, narrow, widen};

/// `x = d * q + m`. Bytes: `d` f16, `m` f16, `qh` 4, `qs` 16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockQ5_1 {
    pub d: Half,
    pub m: Half,
    pub qh: [u8; 4],
    pub qs: [u8; 16],
}

impl BlockQ5_1 {
    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 32]) {
        let (d, m) = (widen(self.d), widen(self.m));
        for (out, q) in out.iter_mut().zip(codes(self.qh, &self.qs)) {
            *out = d * f32::from(q) + m;
        }
    }
    /// Encodes 32 elements, by search when weights of the errors are given.
    pub fn encode(x: &[f32; 32], weights: Option<&[f32; 32]>) -> Self {
        let Affine { scale, offset, codes } = match weights {
            Some(weights) => affine(x, weights, 31, &FINE_SWEEP),
            None => affine_by_range(x, 31),
        };
        let (qh, qs) = (pack_fifth_bits(&codes), pack_nibbles(&codes));
        Self { d: narrow(scale), m: narrow(-offset), qh, qs }
    }
}
