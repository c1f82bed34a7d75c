//! IQ4_NL: 32 elements of 4 bits, indices into a fixed table, with one scale.

use bytemuck::{Pod, Zeroable};

use super::q4_0::pack_nibbles;
use super::search::{Fit, TINY, error_weights, extreme, squares, sum_of_squares};
use super::{Half, narrow, widen};

/// The values that the 4-bit codes stand for.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 32 elements, `x = d * IQ4_VALUES[q]`, nibbles as in Q4_0. Bytes: `d` f16, `qs` 16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockIq4Nl {
    pub d: Half,
    pub qs: [u8; 16],
}

impl BlockIq4Nl {
    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 32]) {
        nibbles(widen(self.d), &self.qs, out);
    }
    /// Encodes 32 elements; `importance` weighs the columns.
    pub fn encode(x: &[f32; 32], importance: Option<&[f32; 32]>) -> Self {
        let variance = sum_of_squares(x) * (2.0 / 32.0);
        let scale = search_scale(x, importance, variance);
        let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
        Self { d: narrow(scale), qs: pack_nibbles(&x.map(|v| nearest_code(inverse * v))) }
    }
}

/// The code of the table's value nearest to `x`; of two equally near, the larger.
pub(super) fn nearest_code(x: f32) -> u8 {
    let above = IQ4_VALUES.partition_point(|&value| f32::from(value) <= x);
    match above {
        0 => 0,
        16 => 15,
        _ => {
            let [below, value] = [above - 1, above].map(|code| f32::from(IQ4_VALUES[code]));
            if x - below < value - x { above as u8 - 1 } else { above as u8 }
        }
    }
}

/// The best of 16 scales that map the extreme element to the neighbourhood of one end of the table. `variance` is
/// used where importances are given.
pub(super) fn search_scale(x: &[f32; 32], importance: Option<&[f32; 32]>, variance: f32) -> f32 {
    const TRIALS: i32 = 7;
    let extreme = extreme(x);
    if extreme.abs() < TINY {
        return 0.0;
    }
    let weights = match importance {
        Some(importance) => error_weights(x, importance, variance),
        None => squares(x),
    };
    let fit = |inverse: f32| {
        let mut fit = Fit::EMPTY;
        for (&v, &weight) in x.iter().zip(&weights) {
            fit.add_level_first(weight, v, f32::from(IQ4_VALUES[usize::from(nearest_code(inverse * v))]));
        }
        fit
    };
    let end = f32::from(IQ4_VALUES[0]);
    let first = fit(1.0 / (-extreme / end));
    let (mut scale, mut gain) = (first.scale(), first.gain());
    for trial in -TRIALS..=TRIALS {
        let candidate = fit((trial as f32 + end) / extreme);
        if candidate.explains_more_than(gain) {
            (scale, gain) = (candidate.scale(), candidate.gain());
        }
    }
    scale
}

/// Decodes 32 codes, nibbles as in Q4_0, with one scale.
pub(super) fn nibbles(scale: f32, qs: &[u8; 16], out: &mut [f32; 32]) {
    for (j, &q) in qs.iter().enumerate() {
        out[j] = scale * f32::from(IQ4_VALUES[usize::from(q & 15)]);
        out[j + 16] = scale * f32::from(IQ4_VALUES[usize::from(q >> 4)]);
    }
}
