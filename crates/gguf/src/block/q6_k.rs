//! Q6_K: 256 elements of 6 bits in 16 groups of 16, each with an 8-bit signed scale.

use bytemuck::{Pod, Zeroable};

use super::search::{Scaled, TINY, extreme, nearest, recode_symmetric, squares, symmetric};
use super::{Half, groups, narrow, widen};

/// `x = d * scale * (q - 32)`.
///
/// Bytes: `ql` 128; `qh` 64; `scales` 16 signed; `d` f16. Elements come in halves of 128, quarters of 32: the low
/// four bits of quarters 0 and 2 are the low and high nibbles of the half's first 32 bytes of `ql`, those of
/// quarters 1 and 3 of its second 32; bit pair `c` of `qh`'s byte `l` is the top of quarter `c`'s element `l`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockQ6K {
    pub ql: [u8; 128],
    pub qh: [u8; 64],
    pub scales: [i8; 16],
    pub d: Half,
}

impl BlockQ6K {
    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 256]) {
        let d = widen(self.d);
        for (g, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(self.scales[g]);
            let (half, quarter, side) = (g / 8, (g % 8) / 2, g % 2);
            for (l, out) in out.iter_mut().enumerate() {
                let at = 16 * side + l;
                let low = (self.ql[64 * half + 32 * (quarter % 2) + at] >> (4 * (quarter / 2))) & 15;
                let high = (self.qh[32 * half + at] >> (2 * quarter)) & 3;
                *out = scale * f32::from((low | (high << 4)) as i8 - 32);
            }
        }
    }
    /// Encodes 256 elements; `importance` weighs the columns.
    pub fn encode(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Self {
        let x = groups::<256, 16, 16>(x);
        let importance = importance.map(groups::<256, 16, 16>);
        let mut fits: [Scaled<16>; 16] = std::array::from_fn(|g| {
            symmetric(&x[g], &importance.map_or_else(|| squares(&x[g]), |weights| weights[g]), 32)
        });
        let largest = extreme(&fits.each_ref().map(|fit| fit.scale));
        if largest.abs() < TINY {
            return Self::zeroed();
        }
        let inverse = -128.0 / largest;
        let d = narrow(1.0 / inverse);
        let scales = fits.each_ref().map(|fit| nearest(inverse * fit.scale).min(127) as i8);
        for (g, x) in x.iter().enumerate() {
            recode_symmetric(x, widen(d) * f32::from(scales[g]), 32, &mut fits[g].codes);
        }
        let codes: Vec<u8> = fits.iter().flat_map(|fit| fit.codes).collect();
        let ql = std::array::from_fn(|at| {
            let first = 128 * (at / 64) + at % 64;
            (codes[first] & 15) | (codes[first + 64] << 4)
        });
        let qh = std::array::from_fn(|at| {
            let first = 128 * (at / 32) + at % 32;
            (0..4).fold(0, |byte, quarter| byte | ((codes[first + 32 * quarter] >> 4) << (2 * quarter)))
        });
        Self { ql, qh, scales, d }
    }
}
