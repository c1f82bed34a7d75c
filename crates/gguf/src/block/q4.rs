//! Q4_0 and Q4_1: 32 elements of 4 bits with one scale, and in Q4_1 a minimum.
//!
//! Byte `j` of `qs` holds element `j` in its low and element `j + 16` in its high nibble.

use bytemuck::{Pod, Zeroable};

use super::{Half, widen};

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
}

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
}
