//! Q8_0: 32 elements of 8 bits with one scale.

use bytemuck::{Pod, Zeroable};

use super::search::truncate;
use super::{Half, narrow, widen};

/// `x = d * q`. Bytes: `d` f16, `qs` 32 signed.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockQ8_0 {
    pub d: Half,
    pub qs: [i8; 32],
}

impl BlockQ8_0 {
    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 32]) {
        let d = widen(self.d);
        for (out, q) in out.iter_mut().zip(self.qs) {
            *out = d * f32::from(q);
        }
    }

    /// Encodes 32 elements: the largest magnitude becomes 127.
    pub fn encode(x: &[f32; 32]) -> Self {
        let largest = x.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
        let d = largest / 127.0;
        let inverse = if d != 0.0 { 1.0 / d } else { 0.0 };
        Self { d: narrow(d), qs: x.map(|v| truncate((v * inverse).round()) as i8) }
    }
}
