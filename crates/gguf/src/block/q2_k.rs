//! Q2_K: 256 elements of 2 bits in 16 groups of 16, each with a 4-bit scale and minimum.

use bytemuck::{Pod, Zeroable};

use super::search::{
    Affine, Deviation, FINE_SWEEP, Sweep, affine, error_weights, nearest, positive, recode_affine, sum,
    sum_of_squares,
};
use super::{Half, groups, narrow, widen};

/// The sweep without importances.
const SWEEP: Sweep = Sweep { from: -0.5, step: 0.1, last: 15, deviation: Deviation::Absolute };

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
    /// Encodes 256 elements; `importance` weighs the columns.
    pub fn encode(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Self {
        let x = groups::<256, 16, 16>(x);
        let mut fits = match importance {
            Some(importance) => Fits::weighted(x, groups(importance)),
            None => Fits::plain(x),
        };
        let (d, dmin) = (narrow(fits.d), narrow(fits.dmin));
        for (g, x) in x.iter().enumerate() {
            let scale = widen(d) * f32::from(fits.scales[g] & 15);
            let min = widen(dmin) * f32::from(fits.scales[g] >> 4);
            recode_affine(x, scale, min, 3, &mut fits.groups[g].codes);
        }
        let codes: Vec<u8> = fits.groups.iter().flat_map(|group| group.codes).collect();
        Self { scales: fits.scales, qs: pack_pairs(&codes), d, dmin }
    }
}

/// Packs the low two bits of 256 codes.
pub(super) fn pack_pairs(codes: &[u8]) -> [u8; 64] {
    std::array::from_fn(|at| {
        let first = 128 * (at / 32) + at % 32;
        (0..4).fold(0, |byte, quarter| byte | ((codes[first + 32 * quarter] & 3) << (2 * quarter)))
    })
}

/// Scales and minimums of all groups, and what they are stored as.
struct Fits {
    groups: [Affine<16>; 16],
    scales: [u8; 16],
    d: f32,
    dmin: f32,
}

impl Fits {
    /// The largest scale and the largest minimum become 15.
    fn plain(x: &[[f32; 16]; 16]) -> Self {
        let groups = x.each_ref().map(|x| affine(x, &x.map(f32::abs), 3, &SWEEP));
        let largest = |part: fn(&Affine<16>) -> f32| groups.iter().map(part).fold(0.0f32, f32::max);
        let (max_scale, max_min) = (largest(|g| g.scale), largest(|g| g.offset));
        let inverse = |max: f32| if max > 0.0 { 15.0 / max } else { 0.0 };
        let (by_scale, by_min) = (inverse(max_scale), inverse(max_min));
        let scales = groups
            .each_ref()
            .map(|g| nearest(by_scale * g.scale) as u8 | ((nearest(by_min * g.offset) as u8) << 4));
        Self { scales, d: max_scale / 15.0, dmin: max_min / 15.0, groups }
    }

    fn weighted(x: &[[f32; 16]; 16], importance: &[[f32; 16]; 16]) -> Self {
        let variance = sum_of_squares(x.as_flattened()) / 256.0;
        let weights: [[f32; 16]; 16] =
            std::array::from_fn(|g| error_weights(&x[g], &importance[g], variance));
        let groups: [Affine<16>; 16] = std::array::from_fn(|g| affine(&x[g], &weights[g], 3, &FINE_SWEEP));
        let totals = weights.each_ref().map(|w| sum(w));
        let scales = positive(&groups.each_ref().map(|g| g.scale), &totals, 15);
        let mins = positive(&groups.each_ref().map(|g| g.offset), &totals, 15);
        let packed = std::array::from_fn(|g| scales.codes[g] | (mins.codes[g] << 4));
        Self { scales: packed, d: scales.scale, dmin: mins.scale, groups }
    }
}
