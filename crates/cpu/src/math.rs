//! Elementary functions and reductions on sixteen lanes.

use crate::simd::{LANES, Simd};

/// Below this, `exp` is 0: the result would be subnormal.
const EXP_MIN: f32 = -87.336_54;

/// Above this, `exp` is infinite (from about 88.38 on).
const EXP_MAX: f32 = 89.0;

/// Adding this leaves the nearest integer in the low bits of the mantissa.
const ROUND: f32 = 12_582_912.0;

/// `ln 2` in two parts, the first exact in few bits.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `(exp(r) - 1 - r) / r^2` for `|r| <= ln(2)/2`: minimax polynomial for the relative error of `exp`, 3e-9.
const EXP_POLY: [f32; 5] = [0.499_999_94, 0.166_665_2, 0.041_668_393, 0.008_368_781, 0.001_381_446_7];

/// `e^x`, with a relative error of at most 1.2e-7. Results below the smallest normal number are 0, from about
/// x = 88.38 on they are infinite; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    let low = s.splat(EXP_MIN);
    // The order of arguments keeps NaN.
    let clamped = s.min(s.splat(EXP_MAX), s.max(low, x));
    let n = s.mul_add(clamped, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND));
    let scale = s.exp2_of_low_bits(n);
    let n = s.sub(n, s.splat(ROUND));
    let r = s.mul_add(n, s.splat(-LN2_HIGH), clamped);
    let r = s.mul_add(n, s.splat(-LN2_LOW), r);
    let q = polynomial(s, r, EXP_POLY);
    let tail = s.mul_add(s.mul(r, r), q, r);
    let result = s.mul(s.add(tail, s.splat(1.0)), scale);
    s.select_less(x, low, s.splat(0.0), result)
}

/// `(tanh(z) / z - 1) / z^2` as a polynomial in `z^2` for `|z| <= 0.625`: relative error of `tanh` 4.4e-9.
const TANH_POLY: [f32; 5] = [-0.333_332_8, 0.133_314_42, -0.053_739_715, 0.020_639_086, -0.005_704_987];

/// `tanh(x)`, with a relative error of at most 2.5e-7.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    let z = s.abs(x);
    let square = s.mul(z, z);
    let near = s.mul_add(s.mul(z, square), polynomial(s, square, TANH_POLY), z);
    let far = s.sub(one, s.div(s.splat(2.0), s.add(exp(s, s.add(z, z)), one)));
    s.copy_sign(s.select_less(z, s.splat(0.625), near, far), x)
}

/// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, computed as `x / (1 + exp(-2 sqrt(2/pi) (...)))`.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: S::F) -> S::F {
    // -2 sqrt(2/pi), and that times 0.044715.
    const LINEAR: f32 = -1.595_769_2;
    const CUBIC: f32 = -0.071_354_82;
    let square = s.mul(x, x);
    let factor = s.mul_add(square, s.splat(CUBIC), s.splat(LINEAR));
    let e = exp(s, s.mul(x, factor));
    s.div(x, s.add(e, s.splat(1.0)))
}

/// `c[0] + c[1] x + ... `, by Horner's rule.
#[inline(always)]
fn polynomial<S: Simd>(s: S, x: S::F, c: [f32; 5]) -> S::F {
    let p = s.mul_add(x, s.splat(c[4]), s.splat(c[3]));
    let p = s.mul_add(p, x, s.splat(c[2]));
    let p = s.mul_add(p, x, s.splat(c[1]));
    s.mul_add(p, x, s.splat(c[0]))
}

/// `sum x^2` in sixteen partial sums (lane = index mod 16), folded in halves.
#[inline(always)]
pub(crate) fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut sums = s.splat(0.0);
    for chunk in chunks {
        let v = s.load(chunk);
        sums = s.mul_add(v, v, sums);
    }
    let v = s.load_part(rest);
    s.sum(s.mul_add(v, v, sums))
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
pub(crate) fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(s, x) / x.len() as f32 + eps).sqrt()
}

#[cfg(test)]
mod tests;
