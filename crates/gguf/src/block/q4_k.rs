//! Q4_K: 256 elements of 4 bits in 8 groups of 32, each with a 6-bit scale and minimum.

use bytemuck::{Pod, Zeroable};

use super::{Half, widen};

/// `x = d * scale * q - dmin * min`.
///
/// Bytes: `d` f16; `dmin` f16; `scales` 12; `qs` 128, byte `32 p + l` holds element `64 p + l` in its low and
/// element `64 p + 32 + l` in its high nibble.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockQ4K {
    pub d: Half,
    pub dmin: Half,
    pub scales: [u8; 12],
    pub qs: [u8; 128],
}

/// Unpacks the eight 6-bit scales and eight 6-bit minimums of Q4_K and Q5_K.
///
/// Groups 0-3: low six bits of bytes 0-3 (scales) and 4-7 (minimums). Groups 4-7: low and high nibble of bytes
/// 8-11, with the two high bits of bytes 0-3 and 4-7 on top.
pub fn scales_and_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let scale = |g: usize| match g {
        0..4 => packed[g] & 63,
        _ => (packed[g + 4] & 15) | ((packed[g - 4] >> 6) << 4),
    };
    let min = |g: usize| match g {
        0..4 => packed[g + 4] & 63,
        _ => (packed[g + 4] >> 4) | ((packed[g] >> 6) << 4),
    };
    (std::array::from_fn(scale), std::array::from_fn(min))
}

impl BlockQ4K {
    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (widen(self.d), widen(self.dmin));
        let (scales, mins) = scales_and_mins(&self.scales);
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = (d * f32::from(scales[g]), dmin * f32::from(mins[g]));
            for (l, out) in out.iter_mut().enumerate() {
                let q = (self.qs[32 * (g / 2) + l] >> (4 * (g % 2))) & 15;
                *out = scale * f32::from(q) - min;
            }
        }
    }
}
