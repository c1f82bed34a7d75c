//! Q4_K: 256 elements of 4 bits in 8 groups of 32, each with a 6-bit scale and minimum.

use bytemuck::{Pod, Zeroable};

use super::search::{
    Affine, Deviation, FINE_SWEEP, Sweep, affine, error_weights, nearest, positive, recode_affine, sum,
    sum_of_squares,
};
use super::{Half, groups, narrow, widen};

/// The sweep without importances.
const SWEEP: Sweep = Sweep { from: -1.0, step: 0.1, last: 20, deviation: Deviation::Squared };

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
    /// Encodes 256 elements; `importance` weighs the columns.
    pub fn encode(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Self {
        let Superblock { d, dmin, scales, codes } = Superblock::encode(x, importance, 15, &SWEEP);
        let qs = std::array::from_fn(|at| {
            let first = 64 * (at / 32) + at % 32;
            codes[first] | (codes[first + 32] << 4)
        });
        Self { d, dmin, scales, qs }
    }
}

/// What Q4_K and Q5_K have in common: 8 groups of 32 codes with scales and minimums.
pub(super) struct Superblock {
    pub d: Half,
    pub dmin: Half,
    pub scales: [u8; 12],
    pub codes: [u8; 256],
}

impl Superblock {
    /// `sweep` is the one without importances.
    pub fn encode(x: &[f32; 256], importance: Option<&[f32; 256]>, max_code: i32, sweep: &Sweep) -> Self {
        let x = groups::<256, 32, 8>(x);
        let mut fits = match importance {
            Some(importance) => Fits::weighted(x, groups(importance), max_code),
            None => Fits::plain(x, max_code, sweep),
        };
        let (d, dmin) = (narrow(fits.d), narrow(fits.dmin));
        let packed = pack_scales_and_mins(&fits.scales, &fits.mins);
        let (scales, mins) = scales_and_mins(&packed);
        let mut codes = [0; 256];
        for (g, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = (widen(d) * f32::from(scales[g]), widen(dmin) * f32::from(mins[g]));
            recode_affine(&x[g], scale, min, max_code, &mut fits.groups[g].codes);
            *codes = fits.groups[g].codes;
        }
        Self { d, dmin, scales: packed, codes }
    }
}

/// Scales and minimums of all groups, and what they are stored as.
struct Fits {
    groups: [Affine<32>; 8],
    scales: [u8; 8],
    mins: [u8; 8],
    d: f32,
    dmin: f32,
}

impl Fits {
    /// The largest scale and the largest minimum become 63.
    fn plain(x: &[[f32; 32]; 8], max_code: i32, sweep: &Sweep) -> Self {
        let groups = x.each_ref().map(|x| {
            let mean = (sum_of_squares(x) / 32.0).sqrt();
            affine(x, &x.map(|v| mean + v.abs()), max_code, sweep)
        });
        let largest = |part: fn(&Affine<32>) -> f32| groups.iter().map(part).fold(0.0f32, f32::max);
        let (max_scale, max_min) = (largest(|g| g.scale), largest(|g| g.offset));
        let inverse = |max: f32| if max > 0.0 { 63.0 / max } else { 0.0 };
        let (by_scale, by_min) = (inverse(max_scale), inverse(max_min));
        Self {
            scales: groups.each_ref().map(|g| (nearest(by_scale * g.scale) as u8).min(63)),
            mins: groups.each_ref().map(|g| (nearest(by_min * g.offset) as u8).min(63)),
            d: max_scale / 63.0,
            dmin: max_min / 63.0,
            groups,
        }
    }

    fn weighted(x: &[[f32; 32]; 8], importance: &[[f32; 32]; 8], max_code: i32) -> Self {
        let variance = 2.0 * sum_of_squares(x.as_flattened()) / 256.0;
        let weights: [[f32; 32]; 8] = std::array::from_fn(|g| error_weights(&x[g], &importance[g], variance));
        let groups: [Affine<32>; 8] =
            std::array::from_fn(|g| affine(&x[g], &weights[g], max_code, &FINE_SWEEP));
        let totals = weights.each_ref().map(|w| sum(w));
        let scales = positive(&groups.each_ref().map(|g| g.scale), &totals, 63);
        let mins = positive(&groups.each_ref().map(|g| g.offset), &totals, 63);
        Self { scales: scales.codes, mins: mins.codes, d: scales.scale, dmin: mins.scale, groups }
    }
}

/// The inverse of [`scales_and_mins`].
fn pack_scales_and_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    std::array::from_fn(|at| match at {
        0..4 => scales[at] | ((scales[at + 4] >> 4) << 6),
        4..8 => mins[at - 4] | ((mins[at] >> 4) << 6),
        _ => (scales[at - 4] & 15) | ((mins[at - 4] & 15) << 4),
    })
}
