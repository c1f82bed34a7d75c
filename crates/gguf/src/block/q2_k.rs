//! Q2_K: 256 elements of 2 bits in 16 groups of 16, each with a 4-bit scale and minimum.

use bytemuck::{Pod, Zeroable};

use super::{Half, widen};

/// `x = d * scale * q - dmin * min`.
///
/// Bytes: `scales` 16 (low nibble scale, high nibble minimum); `qs` 64; `d` f16; `dmin` f16. Elements come in
/// halves of 128: byte `l` (0..32) of a half holds elements `l`, `l + 32`, `l + 64`, `l + 96` of it, two bits each
/// from the lowest up.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockQ2K {
    pub scales: [u8; 16],
    pub qs: [u8; 64],
    pub d: Half,
    pub dmin: Half,
}

impl BlockQ2K {
    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (widen(self.d), widen(self.dmin));
        for (g, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(self.scales[g] & 15);
            let min = dmin * f32::from(self.scales[g] >> 4);
            let (half, shift, side) = (g / 8, 2 * ((g % 8) / 2), g % 2);
            for (l, out) in out.iter_mut().enumerate() {
                let q = (self.qs[32 * half + 16 * side + l] >> shift) & 3;
                *out = scale * f32::from(q) - min;
            }
        }
    }
}
