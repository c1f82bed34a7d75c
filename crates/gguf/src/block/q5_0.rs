//! Q5_0: 32 elements of 5 bits with one scale.

use bytemuck::{Pod, Zeroable};

use super::q4_0::pack_nibbles;
use super::search::{Scaled, symmetric, symmetric_by_extreme};
use super::{Half, narrow, widen};

/// `x = d * (q - 16)`. Bytes: `d` f16, `qh` 4, `qs` 16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockQ5_0 {
    pub d: Half,
    pub qh: [u8; 4],
    pub qs: [u8; 16],
}

/// The 5-bit codes of a block.
pub(super) fn codes(qh: [u8; 4], qs: &[u8; 16]) -> [u8; 32] {
    let high = u32::from_le_bytes(qh);
    std::array::from_fn(|j| {
        let low = if j < 16 { qs[j] & 15 } else { qs[j - 16] >> 4 };
        low | (((high >> j) & 1) << 4) as u8
    })
}

impl BlockQ5_0 {
    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 32]) {
        let d = widen(self.d);
        for (out, q) in out.iter_mut().zip(codes(self.qh, &self.qs)) {
            *out = d * f32::from(i16::from(q) - 16);
        }
    }
    /// Encodes 32 elements, by search when weights of the errors are given.
    pub fn encode(x: &[f32; 32], weights: Option<&[f32; 32]>) -> Self {
        let Scaled { scale, codes } = match weights {
            Some(weights) => symmetric(x, weights, 16),
            None => symmetric_by_extreme(x, 16),
        };
        Self { d: narrow(scale), qh: pack_fifth_bits(&codes), qs: pack_nibbles(&codes) }
    }
}

/// The fifth bits of 32 codes as a 32-bit word.
pub(super) fn pack_fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    let bits = codes.iter().enumerate().map(|(j, &code)| u32::from((code >> 4) & 1) << j);
    bits.fold(0, |word, bit| word | bit).to_le_bytes()
}
