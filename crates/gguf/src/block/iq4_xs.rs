//! IQ4_XS: IQ4_NL in superblocks of 256 elements with 6-bit scales.

use bytemuck::{Pod, Zeroable};

use super::iq4_nl::{nearest_code, nibbles, search_scale};
use super::q4_0::pack_nibbles;
use super::search::{extreme, nearest, sum_of_squares};
use super::{Half, groups, narrow, widen};

/// 256 elements in 8 groups of 32, each with a 6-bit scale: `x = d * (scale - 32) * IQ4_VALUES[q]`.
///
/// Bytes: `d` f16; `scales_h` u16, two high bits a group; `scales_l` 4, four low bits a group; `qs` 128, each
/// group's 16 bytes as in Q4_0.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockIq4Xs {
    pub d: Half,
    pub scales_h: [u8; 2],
    pub scales_l: [u8; 4],
    pub qs: [[u8; 16]; 8],
}

impl BlockIq4Xs {
    /// The signed scale of each group, -32 to 31.
    pub fn scales(&self) -> [i8; 8] {
        let high = u16::from_le_bytes(self.scales_h);
        std::array::from_fn(|g| {
            let low = (self.scales_l[g / 2] >> (4 * (g % 2))) & 15;
            (low | ((((high >> (2 * g)) & 3) as u8) << 4)) as i8 - 32
        })
    }

    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 256]) {
        let d = widen(self.d);
        for ((scale, qs), out) in self.scales().into_iter().zip(&self.qs).zip(out.as_chunks_mut::<32>().0) {
            nibbles(d * f32::from(scale), qs, out);
        }
    }
    /// Encodes 256 elements; `importance` weighs the columns.
    pub fn encode(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Self {
        let variance = sum_of_squares(x) * (2.0 / 256.0);
        let x = groups::<256, 32, 8>(x);
        let importance = importance.map(groups::<256, 32, 8>);
        let scales: [f32; 8] =
            std::array::from_fn(|g| search_scale(&x[g], importance.map(|all| &all[g]), variance));
        let d = -extreme(&scales) / 32.0;
        let inverse = if d != 0.0 { 1.0 / d } else { 0.0 };
        let levels = scales.map(|scale| nearest(inverse * scale).clamp(-32, 31));
        // The codes go by the unrounded `d`, as in GGML.
        let qs = std::array::from_fn(|g| {
            let scale = d * levels[g] as f32;
            let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
            pack_nibbles(&x[g].map(|v| nearest_code(inverse * v)))
        });
        let stored = levels.map(|level| (level + 32) as u8);
        let high = (0..8).fold(0, |word, g| word | (u16::from(stored[g] >> 4) << (2 * g)));
        Self {
            d: narrow(d),
            scales_h: high.to_le_bytes(),
            scales_l: std::array::from_fn(|at| (stored[2 * at] & 15) | ((stored[2 * at + 1] & 15) << 4)),
            qs,
        }
    }
}
