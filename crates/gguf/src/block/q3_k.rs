//! Q3_K: 256 elements of 3 bits in 16 groups of 16, each with a 6-bit signed scale.

use bytemuck::{Pod, Zeroable};

use super::q2_k::pack_pairs;
use super::search::{
    Scaled, error_weights, extreme, nearest, recode_symmetric, sum, sum_of_squares, symmetric,
    symmetric_by_moves,
};
use super::{Half, groups, narrow, widen};

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
    /// Encodes 256 elements; `importance` weighs the columns.
    pub fn encode(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Self {
        let x = groups::<256, 16, 16>(x);
        let (mut fits, scales) = match importance {
            Some(importance) => fit_weighted(x, groups(importance)),
            None => fit_plain(x),
        };
        let d = narrow(scales.scale);
        for (g, x) in x.iter().enumerate() {
            let scale = widen(d) * (f32::from(scales.codes[g]) - 32.0);
            recode_symmetric(x, scale, 4, &mut fits[g].codes);
        }
        let codes: Vec<u8> = fits.iter().flat_map(|fit| fit.codes).collect();
        let hmask = std::array::from_fn(|l| {
            (0..8).fold(0, |byte, bit| byte | (((codes[32 * bit + l] >> 2) & 1) << bit))
        });
        Self { hmask, qs: pack_pairs(&codes), scales: pack_scales(&scales.codes), d }
    }
}

/// The groups, and their scales as codes `l + 32`; the scale of largest magnitude becomes -32.
fn fit_plain(x: &[[f32; 16]; 16]) -> ([Scaled<16>; 16], Scaled<16>) {
    let fits = x.each_ref().map(|x| symmetric_by_moves(x, 4));
    let scales = fits.each_ref().map(|fit| fit.scale);
    let extreme = extreme(&scales);
    if extreme == 0.0 {
        return (fits, Scaled { scale: 0.0, codes: [0; 16] });
    }
    let inverse = -32.0 / extreme;
    let codes = scales.map(|scale| ((nearest(inverse * scale) as i8).clamp(-32, 31) + 32) as u8);
    (fits, Scaled { scale: 1.0 / inverse, codes })
}

fn fit_weighted(x: &[[f32; 16]; 16], importance: &[[f32; 16]; 16]) -> ([Scaled<16>; 16], Scaled<16>) {
    let variance = 2.0 * sum_of_squares(x.as_flattened()) / 256.0;
    let weights: [[f32; 16]; 16] = std::array::from_fn(|g| error_weights(&x[g], &importance[g], variance));
    let fits: [Scaled<16>; 16] = std::array::from_fn(|g| symmetric(&x[g], &weights[g], 4));
    let totals = weights.each_ref().map(|w| sum(w));
    let scales = symmetric(&fits.each_ref().map(|fit| fit.scale), &totals, 32);
    (fits, scales)
}

/// The inverse of [`BlockQ3K::scales`], from codes `scale + 32`.
fn pack_scales(codes: &[u8; 16]) -> [u8; 12] {
    std::array::from_fn(|at| match at {
        0..8 => (codes[at] & 15) | ((codes[at + 8] & 15) << 4),
        _ => (0..4).fold(0, |byte, pair| byte | (((codes[4 * pair + at - 8] >> 4) & 3) << (2 * pair))),
    })
}
