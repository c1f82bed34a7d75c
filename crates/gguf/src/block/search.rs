//! Searches for the scales of a group of numbers, shared by the encoders.
//!
//! An encoder chooses integer codes `l` and a scale `s` (and sometimes an offset) so that `s * l` is close to `x`
//! with the errors weighted by `w`. For given codes the best scale is a weighted least-squares fit; the codes come
//! from rounding `x` by a trial scale, so a handful of trial scales around the obvious one are tried and the best
//! fit is kept. Some searches then move single codes while that helps.
//!
//! The order of floating-point operations is that of GGML's generic encoders, so that both write the same bytes.

/// Groups whose largest magnitude is below this are stored as zeros.
pub const TINY: f32 = 1e-15;

/// Codes of a group and the scale they are multiplied by.
pub struct Scaled<const N: usize> {
    pub scale: f32,
    pub codes: [u8; N],
}

/// Codes of a group with `x ~ scale * code - offset`.
pub struct Affine<const N: usize> {
    pub scale: f32,
    pub offset: f32,
    pub codes: [u8; N],
}

/// The nearest integer, ties to even, by the float format's own rounding: adding 1.5 * 2^23 leaves the integer in
/// the mantissa. Magnitudes beyond 2^22 give the low bits only, as in GGML.
#[inline]
pub fn nearest(x: f32) -> i32 {
    ((x + 12_582_912.0).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// Conversion towards zero; what does not fit becomes the smallest integer, as x86 does and GGML's files show.
#[inline]
pub fn truncate(x: f32) -> i32 {
    if x.abs() < 2_147_483_648.0 { x as i32 } else { i32::MIN }
}

/// The element of largest magnitude, the first of equals.
pub fn extreme(x: &[f32]) -> f32 {
    let mut extreme = 0.0f32;
    for &v in x {
        if v.abs() > extreme.abs() {
            extreme = v;
        }
    }
    extreme
}

fn range(x: &[f32]) -> (f32, f32) {
    x.iter()
        .fold((x[0], x[0]), |(min, max), &v| (if v < min { v } else { min }, if v > max { v } else { max }))
}

/// Sum of squares, added in order.
pub fn sum_of_squares(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, v| sum + v * v)
}

/// Sum, added in order.
pub fn sum(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, v| sum + v)
}

/// Weights of the errors where importances of the columns are known: an error matters more in important columns
/// and in large elements. `variance` is a mean square of the surroundings.
pub fn error_weights<const N: usize>(x: &[f32; N], importance: &[f32; N], variance: f32) -> [f32; N] {
    std::array::from_fn(|i| importance[i] * (variance + x[i] * x[i]).sqrt())
}

/// Squares of the elements: the weights where nothing is known of the columns.
pub fn squares<const N: usize>(x: &[f32; N]) -> [f32; N] {
    x.map(|v| v * v)
}

/// Weighted least squares of `x ~ s * l`: the best `s` is `lx / ll`, and it explains `lx^2 / ll` of the energy.
#[derive(Clone, Copy)]
pub struct Fit {
    lx: f32,
    ll: f32,
}

impl Fit {
    pub const EMPTY: Self = Self { lx: 0.0, ll: 0.0 };

    #[inline]
    pub fn add(&mut self, weight: f32, x: f32, level: f32) {
        self.lx += weight * x * level;
        self.ll += weight * level * level;
    }

    /// [`add`](Self::add) with the factors in the order that the table formats use.
    #[inline]
    pub fn add_level_first(&mut self, weight: f32, x: f32, level: f32) {
        self.lx += weight * level * x;
        self.ll += weight * level * level;
    }

    fn without(self, weight: f32, x: f32, level: f32) -> Self {
        Self { lx: self.lx - weight * x * level, ll: self.ll - weight * level * level }
    }

    /// The best scale; zero when all levels are.
    pub fn scale(self) -> f32 {
        if self.ll > 0.0 { self.lx / self.ll } else { 0.0 }
    }

    /// Whether this fit explains more than `gain`.
    pub fn explains_more_than(self, gain: f32) -> bool {
        self.ll > 0.0 && self.lx * self.lx > gain * self.ll
    }

    /// Whether this fit explains more than the other.
    fn beats(self, other: Self) -> bool {
        self.lx * self.lx * other.ll > other.lx * other.lx * self.ll
    }

    /// What the best scale explains.
    pub fn gain(self) -> f32 {
        self.scale() * self.lx
    }
}

/// Codes `l + half` with levels `l` from `-half` to `half - 1`, by rounding with the scale that maps the extreme
/// element to `-half`.
pub fn symmetric_by_extreme<const N: usize>(x: &[f32; N], half: u8) -> Scaled<N> {
    let scale = extreme(x) / -f32::from(half);
    let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
    let codes = x.map(|v| (truncate(v * inverse + (f32::from(half) + 0.5)) as u8).min(2 * half - 1));
    Scaled { scale, codes }
}

/// Codes 0 to `max_code` that spread evenly from the smallest to the largest element.
pub fn affine_by_range<const N: usize>(x: &[f32; N], max_code: u8) -> Affine<N> {
    let (min, max) = range(x);
    let scale = (max - min) / f32::from(max_code);
    let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
    let codes = x.map(|v| (truncate((v - min) * inverse + 0.5) as u8).min(max_code));
    Affine { scale, offset: -min, codes }
}

/// Codes `l + half` with levels from `-half` to `half - 1`: 19 trial scales around the one that maps the extreme
/// element to `-half`.
///
/// The codes of an all-zero group are 0, not `half`.
pub fn symmetric<const N: usize>(x: &[f32; N], weights: &[f32; N], half: i32) -> Scaled<N> {
    let extreme = extreme(x);
    if extreme.abs() < TINY {
        return Scaled { scale: 0.0, codes: [0; N] };
    }
    let level = |inverse: f32, v: f32| nearest(inverse * v).clamp(-half, half - 1);
    let fit = |inverse: f32| {
        let mut fit = Fit::EMPTY;
        for i in 0..N {
            fit.add(weights[i], x[i], level(inverse, x[i]) as f32);
        }
        fit
    };
    let mut best_inverse = -(half as f32) / extreme;
    let first = fit(best_inverse);
    let mut scale = if first.ll != 0.0 { first.lx / first.ll } else { 0.0 };
    let mut gain = scale * first.lx;
    for trial in (-9..=9).filter(|&trial| trial != 0) {
        let inverse = -(half as f32 + 0.1 * trial as f32) / extreme;
        let candidate = fit(inverse);
        if candidate.explains_more_than(gain) {
            (best_inverse, scale, gain) = (inverse, candidate.scale(), candidate.gain());
        }
    }
    Scaled { scale, codes: x.map(|v| (level(best_inverse, v) + half) as u8) }
}

/// As [`symmetric`], but one trial scale, squares as weights, and up to five passes that move single codes.
pub fn symmetric_by_moves<const N: usize>(x: &[f32; N], half: i32) -> Scaled<N> {
    let extreme = extreme(x);
    if extreme.abs() < TINY {
        return Scaled { scale: 0.0, codes: [0; N] };
    }
    let inverse = -(half as f32) / extreme;
    let mut levels = x.map(|v| nearest(inverse * v).clamp(-half, half - 1));
    let weights = squares(x);
    let mut fit = Fit::EMPTY;
    for i in 0..N {
        fit.add(weights[i], x[i], levels[i] as f32);
    }
    for _ in 0..5 {
        let mut moved = false;
        for i in 0..N {
            let mut other = fit.without(weights[i], x[i], levels[i] as f32);
            if other.lx <= 0.0 {
                continue;
            }
            let level = nearest(x[i] * other.ll / other.lx).clamp(-half, half - 1);
            if level == levels[i] {
                continue;
            }
            other.add(weights[i], x[i], level as f32);
            if other.ll > 0.0 && other.beats(fit) {
                (levels[i], fit, moved) = (level, other, true);
            }
        }
        if !moved {
            break;
        }
    }
    Scaled { scale: fit.scale(), codes: levels.map(|level| (level + half) as u8) }
}

/// Codes 0 to `max_code` for numbers that are not negative (scales of groups): nine trial scales, then up to five
/// passes that move single codes.
pub fn positive<const N: usize>(x: &[f32; N], weights: &[f32; N], max_code: i32) -> Scaled<N> {
    let max = x.iter().fold(0.0f32, |max, &v| if v > max { v } else { max });
    if max < TINY {
        return Scaled { scale: 0.0, codes: [0; N] };
    }
    let error = |inverse: f32| {
        let scale = 1.0 / inverse;
        let mut error = 0.0;
        for i in 0..N {
            let difference = x[i] - scale * nearest(inverse * x[i]).min(max_code) as f32;
            error += weights[i] * difference * difference;
        }
        error
    };
    let mut inverse = max_code as f32 / max;
    let mut least = error(inverse);
    for trial in (-4..=4).filter(|&trial| trial != 0) {
        let candidate = (0.1 * trial as f32 + max_code as f32) / max;
        let found = error(candidate);
        if found < least {
            (inverse, least) = (candidate, found);
        }
    }
    let mut codes = x.map(|v| nearest(inverse * v).min(max_code) as u8);
    let mut fit = Fit::EMPTY;
    for i in 0..N {
        fit.add(weights[i], x[i], nearest(inverse * x[i]).min(max_code) as f32);
    }
    for _ in 0..5 {
        let mut moved = false;
        for i in 0..N {
            let mut other = fit.without(weights[i], x[i], f32::from(codes[i]));
            if other.lx <= 0.0 || other.ll <= 0.0 {
                continue;
            }
            let code = nearest(x[i] * other.ll / other.lx).min(max_code);
            if code == i32::from(codes[i]) {
                continue;
            }
            other.add(weights[i], x[i], code as f32);
            if other.beats(fit) {
                (codes[i], fit, moved) = (code as u8, other, true);
            }
        }
        if !moved {
            break;
        }
    }
    Scaled { scale: fit.scale(), codes }
}

/// How deviations count in [`affine`].
#[derive(Clone, Copy)]
pub enum Deviation {
    Absolute,
    Squared,
}

/// The trial scales of [`affine`]: they map the range to `max_code + from + step * k` for `k` up to `last`.
#[derive(Clone, Copy)]
pub struct Sweep {
    pub from: f32,
    pub step: f32,
    pub last: i32,
    pub deviation: Deviation,
}

/// The sweep used wherever the importances of columns are known.
pub const FINE_SWEEP: Sweep = Sweep { from: -0.9, step: 0.05, last: 36, deviation: Deviation::Squared };

/// Codes 0 to `max_code` with scale and offset, where the offset is not negative: zero can always be represented.
pub fn affine<const N: usize>(x: &[f32; N], weights: &[f32; N], max_code: i32, sweep: &Sweep) -> Affine<N> {
    let (min, max) = range(x);
    let min = if min > 0.0 { 0.0 } else { min };
    if max == min {
        return Affine { scale: 0.0, offset: -min, codes: [0; N] };
    }
    let codes_by = |inverse: f32, min: f32| x.map(|v| nearest(inverse * (v - min)).clamp(0, max_code) as u8);
    let error = |codes: &[u8; N], scale: f32, min: f32| {
        let mut error = 0.0;
        for i in 0..N {
            let difference = scale * f32::from(codes[i]) + min - x[i];
            error += weights[i]
                * match sweep.deviation {
                    Deviation::Absolute => difference.abs(),
                    Deviation::Squared => difference * difference,
                };
        }
        error
    };
    let inverse = max_code as f32 / (max - min);
    let mut best = Affine { scale: 1.0 / inverse, offset: min, codes: codes_by(inverse, min) };
    let mut least = error(&best.codes, best.scale, min);

    let totals = Totals::of(x, weights);
    for k in 0..=sweep.last {
        // Each trial starts from the best minimum so far.
        let from = best.offset;
        let inverse = (sweep.from + sweep.step * k as f32 + max_code as f32) / (max - from);
        let codes = codes_by(inverse, from);
        let Some((scale, min)) = totals.fit(x, weights, &codes) else { continue };
        let found = error(&codes, scale, min);
        if found < least {
            least = found;
            best = Affine { scale, offset: min, codes };
        }
    }
    Affine { offset: -best.offset, ..best }
}

/// The sums of a weighted linear regression that do not depend on the codes.
struct Totals {
    w: f32,
    x: f32,
}

impl Totals {
    fn of(x: &[f32], weights: &[f32]) -> Self {
        let mut totals = Self { w: weights[0], x: weights[0] * x[0] };
        for (x, w) in x.iter().zip(weights).skip(1) {
            totals.w += w;
            totals.x += w * x;
        }
        totals
    }

    /// Scale and minimum (at most zero) of the regression of `x` on the codes; `None` when all codes are equal.
    fn fit<const N: usize>(&self, x: &[f32; N], weights: &[f32; N], codes: &[u8; N]) -> Option<(f32, f32)> {
        let (mut l, mut ll, mut lx) = (0.0f32, 0.0f32, 0.0f32);
        for i in 0..N {
            let (w, code) = (weights[i], f32::from(codes[i]));
            l += w * code;
            ll += w * code * code;
            lx += w * code * x[i];
        }
        let determinant = self.w * ll - l * l;
        if determinant.is_nan() || determinant <= 0.0 {
            return None;
        }
        let scale = (self.w * lx - self.x * l) / determinant;
        let min = (ll * self.x - l * lx) / determinant;
        if min > 0.0 { Some((lx / ll, 0.0)) } else { Some((scale, min)) }
    }
}

/// Codes once more, now that the scale has been rounded to what is stored; they stay when the scale became zero.
pub fn recode_affine<const N: usize>(
    x: &[f32; N],
    scale: f32,
    offset: f32,
    max_code: i32,
    codes: &mut [u8; N],
) {
    if scale != 0.0 {
        *codes = x.map(|v| nearest((v + offset) / scale).clamp(0, max_code) as u8);
    }
}

/// As [`recode_affine`], for codes `l + half`.
pub fn recode_symmetric<const N: usize>(x: &[f32; N], scale: f32, half: i32, codes: &mut [u8; N]) {
    if scale != 0.0 {
        *codes = x.map(|v| (nearest(v / scale).clamp(-half, half - 1) + half) as u8);
    }
}
