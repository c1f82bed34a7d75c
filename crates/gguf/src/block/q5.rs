//! Q5_0 and Q5_1: 32 elements of 5 bits with one scale, and in Q5_1 a minimum.
//!
//! The low four bits are laid out as in Q4_0; bit `j` of the 32-bit word `qh` is the fifth bit of element `j`.

use bytemuck::{Pod, Zeroable};

use super::{Half, widen};

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
fn codes(qh: [u8; 4], qs: &[u8; 16]) -> [u8; 32] {
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
}

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
}
