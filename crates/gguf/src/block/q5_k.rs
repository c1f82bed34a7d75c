//! Q5_K: Q4_K with a fifth bit.

use bytemuck::{Pod, Zeroable};

use super::q4_k::Superblock;
use super::search::{Deviation, Sweep};
use super::{Half, scales_and_mins, widen};

/// The sweep without importances.
const SWEEP: Sweep = Sweep { from: -0.5, step: 0.1, last: 15, deviation: Deviation::Squared };

/// `x = d * scale * q - dmin * min`.
///
/// Bytes: `d` f16; `dmin` f16; `scales` 12 as in Q4_K; `qh` 32, bit `g` of byte `l` is the fifth bit of element
/// `32 g + l`; `qs` 128 as in Q4_K.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockQ5K {
    pub d: Half,
    pub dmin: Half,
    pub scales: [u8; 12],
    pub qh: [u8; 32],
    pub qs: [u8; 128],
}

impl BlockQ5K {
    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (widen(self.d), widen(self.dmin));
        let (scales, mins) = scales_and_mins(&self.scales);
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = (d * f32::from(scales[g]), dmin * f32::from(mins[g]));
            for (l, out) in out.iter_mut().enumerate() {
                let low = (self.qs[32 * (g / 2) + l] >> (4 * (g % 2))) & 15;
                let high = (self.qh[l] >> g) & 1;
                *out = scale * f32::from(low | (high << 4)) - min;
            }
        }
    }
    /// Encodes 256 elements; `importance` weighs the columns.
    pub fn encode(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Self {
        let Superblock { d, dmin, scales, codes } = Superblock::encode(x, importance, 31, &SWEEP);
        let qh = std::array::from_fn(|l| (0..8).fold(0, |byte, g| byte | ((codes[32 * g + l] >> 4) << g)));
        let qs = std::array::from_fn(|at| {
            let first = 64 * (at / 32) + at % 32;
            (codes[first] & 15) | (codes[first + 32] << 4)
        });
        Self { d, dmin, scales, qh, qs }
    }
}
