//! Q8_0: 32 elements of 8 bits with one scale.

use bytemuck::{Pod, Zeroable};

use super::{Half, widen};

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
}
