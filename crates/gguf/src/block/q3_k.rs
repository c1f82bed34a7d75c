//! Q3_K: 256 elements of 3 bits in 16 groups of 16, each with a 6-bit signed scale.

use bytemuck::{Pod, Zeroable};

use super::{Half, widen};

/// `x = d * (scale - 32) * (q - 4)`.
///
/// Bytes: `hmask` 32, bit `b` of byte `l` is the high bit of element `32 b + l`; `qs` 64, low two bits as in Q2_K;
/// `scales` 12; `d` f16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockQ3K {
    pub hmask: [u8; 32],
    pub qs: [u8; 64],
    pub scales: [u8; 12],
    pub d: Half,
}

impl BlockQ3K {
    /// The signed scale of each group, -32 to 31: low nibbles in the first 8 bytes (groups 0-7 low, 8-15 high
    /// nibble), high bit pairs in the last 4 (byte `g % 4`, pair `g / 4`).
    pub fn scales(&self) -> [i8; 16] {
        std::array::from_fn(|g| {
            let low = (self.scales[g % 8] >> (4 * (g / 8))) & 15;
            let high = (self.scales[8 + g % 4] >> (2 * (g / 4))) & 3;
            (low | (high << 4)) as i8 - 32
        })
    }

    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 256]) {
        let (d, scales) = (widen(self.d), self.scales());
        for (g, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(scales[g]);
            let (half, pair, side) = (g / 8, (g % 8) / 2, g % 2);
            for (l, out) in out.iter_mut().enumerate() {
                let low = (self.qs[32 * half + 16 * side + l] >> (2 * pair)) & 3;
                let high = (self.hmask[16 * side + l] >> (4 * half + pair)) & 1;
                *out = scale * f32::from((low | (high << 2)) as i8 - 4);
            }
        }
    }
}
