//! Lloyd-Max quantisers of the standard normal distribution.
//!
//! The quantiser with `2^bits` levels and the least mean squared error satisfies two conditions: a boundary lies
//! half-way between its levels, and a level is the mean of the numbers between its boundaries (S. P. Lloyd, *Least
//! squares quantization in PCM*, 1957/1982; J. Max, *Quantizing for minimum distortion*, 1960). Lloyd's iteration
//! creeps when there are many levels, so the solution is reached by Newton's method on the two conditions, from the
//! levels of the asymptotically best compressor, whose density is the cube root of the normal one (Panter and Dite,
//! 1951).

use std::f64::consts::{FRAC_1_SQRT_2, TAU};
use std::sync::OnceLock;

/// The positive levels of the quantiser with `2^bits` levels, ascending; the others are their negatives.
///
/// # Panics
/// When `bits` is 0 or above 8.
pub fn levels(bits: u32) -> &'static [f32] {
    static TABLES: [OnceLock<Vec<f32>>; 9] = [const { OnceLock::new() }; 9];
    assert!(bits > 0, "a quantiser has at least two levels");
    TABLES[bits as usize].get_or_init(|| solve(1 << (bits - 1)).iter().map(|&x| x as f32).collect())
}

/// The mean squared error of the quantiser with `2^bits` levels on standard normal numbers.
pub fn distortion(bits: u32) -> f64 {
    let x = solve(1 << (bits - 1));
    // Levels are means, so that E[(z - q)^2] = 1 - E[q^2].
    1.0 - 2.0 * cells(&x).map(|(i, a, b)| probability(a, b) * x[i] * x[i]).sum::<f64>()
}

/// The positive levels, `n` of them, to a few units of the last place.
fn solve(n: usize) -> Vec<f64> {
    let share = |i: usize| 0.5 * (1.0 - (i as f64 + 0.5) / n as f64);
    let mut x: Vec<f64> = (0..n).map(|i| 3f64.sqrt() * upper_quantile(share(i))).collect();
    for _ in 0..100 {
        let step = newton_step(&x);
        let largest = step.iter().fold(0.0, |m: f64, s| m.max(s.abs()));
        for (x, step) in x.iter_mut().zip(step) {
            *x -= step;
        }
        if largest < 1e-14 {
            break;
        }
    }
    x
}

/// The cells of the positive levels: index, lower and upper boundary.
fn cells(x: &[f64]) -> impl Iterator<Item = (usize, f64, f64)> {
    let bound = |i: usize| match i {
        0 => 0.0,
        i if i == x.len() => f64::INFINITY,
        i => 0.5 * (x[i - 1] + x[i]),
    };
    (0..x.len()).map(move |i| (i, bound(i), bound(i + 1)))
}

/// Solves `J s = F` for the residuals `F_i = x_i - mean of cell i`. A mean depends on the neighbouring levels only,
/// so the Jacobian `J` is tridiagonal.
fn newton_step(x: &[f64]) -> Vec<f64> {
    let n = x.len();
    let (mut below, mut diagonal, mut above, mut s) =
        (vec![0.0; n], vec![1.0; n], vec![0.0; n], vec![0.0; n]);
    for (i, a, b) in cells(x) {
        let p = probability(a, b);
        let mean = (density(a) - density(b)) / p;
        s[i] = x[i] - mean;
        if i > 0 {
            below[i] = -0.5 * density(a) * (mean - a) / p;
        }
        if i + 1 < n {
            above[i] = -0.5 * density(b) * (b - mean) / p;
        }
        diagonal[i] += below[i] + above[i];
    }
    for i in 1..n {
        let factor = below[i] / diagonal[i - 1];
        diagonal[i] -= factor * above[i - 1];
        s[i] -= factor * s[i - 1];
    }
    s[n - 1] /= diagonal[n - 1];
    for i in (0..n - 1).rev() {
        s[i] = (s[i] - above[i] * s[i + 1]) / diagonal[i];
    }
    s
}

fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / TAU.sqrt()
}

/// Probability of a number above `x`.
fn upper_tail(x: f64) -> f64 {
    0.5 * libm::erfc(x * FRAC_1_SQRT_2)
}

fn probability(a: f64, b: f64) -> f64 {
    upper_tail(a) - upper_tail(b)
}

/// The `x` above which a share `p <= 1/2` of the numbers lies.
fn upper_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (0.0, 10.0);
    for _ in 0..60 {
        let x = 0.5 * (low + high);
        if upper_tail(x) > p { low = x } else { high = x }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bit_levels_are_the_published_ones() {
        let published =
            [0.128_395_0_f64, 0.3880483, 0.6567591, 0.9423405, 1.2562312, 1.6180464, 2.0690172, 2.7325896];
        for (found, expected) in levels(4).iter().zip(published) {
            assert!((f64::from(*found) - expected).abs() < 2e-7, "{found} {expected}");
        }
    }

    #[test]
    fn both_conditions_hold_to_1e_12() {
        for bits in 1..=8 {
            let x = solve(1 << (bits - 1));
            for (i, a, b) in cells(&x) {
                let mean = (density(a) - density(b)) / probability(a, b);
                assert!((x[i] - mean).abs() < 1e-12, "{bits} bits, level {i}: {} {mean}", x[i]);
            }
            assert!(x.is_sorted() && x[0] > 0.0);
        }
    }

    #[test]
    fn errors_are_the_published_ones() {
        // Max 1960 (1 to 5 bits); the others from the same conditions.
        for (bits, expected) in [
            (1, 0.3634),
            (2, 0.1175),
            (3, 0.03454),
            (4, 9.501e-3),
            (5, 2.505e-3),
            (6, 6.442e-4),
            (8, 4.119e-5),
        ] {
            let found = distortion(bits);
            assert!((found / expected - 1.0).abs() < 6e-4, "{bits} bits: {found:e} {expected:e}");
        }
    }
}
