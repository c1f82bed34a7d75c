//! The rotation in front of the TurboQuant formats: random signs, then a Walsh-Hadamard transform.
//!
//! A vector of `d` elements is rotated in parts of `p` elements, `p` the largest power of two that divides `d`: all
//! of it for heads of 64, 128, 256 or 512. The transform is orthogonal and its own inverse; the signs keep vectors
//! that lie along one of its rows from landing on one element. Dot products of two rotated vectors are those of the
//! vectors, so attention works on rotated keys and values, and only the query and the finished output are rotated.

use std::sync::LazyLock;

/// Longest head.
pub const MAX_DIM: usize = 512;

/// Start of the generator of the signs.
const SEED: u64 = 0x4c61_7069_6461_7279;

/// The sign of each element of a head, +1 or -1: bit 63 of the outputs of SplitMix64 (Steele, Lea and Flood, 2014)
/// from the seed `0x4c61706964617279`; the same for every layer, head and position.
pub fn signs() -> &'static [f32; MAX_DIM] {
    static SIGNS: LazyLock<[f32; MAX_DIM]> = LazyLock::new(|| {
        let mut state = SEED;
        std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            if (z ^ (z >> 31)) >> 63 == 1 { -1.0 } else { 1.0 }
        })
    });
    &SIGNS
}

/// Elements that are rotated together: the largest power of two that divides `head_dim`.
pub const fn part_dim(head_dim: usize) -> usize {
    1 << head_dim.trailing_zeros()
}

/// `1 / sqrt(part_dim)`.
pub fn part_scale(head_dim: usize) -> f32 {
    (1.0 / (part_dim(head_dim) as f64).sqrt()) as f32
}

/// Rotates `x`: `H S x` with the signs `S` and the transform `H`.
pub fn rotate(x: &mut [f32]) {
    flip(x);
    transform(x);
}

/// Undoes [`rotate`]: `S H x`.
pub fn unrotate(x: &mut [f32]) {
    transform(x);
    flip(x);
}

fn flip(x: &mut [f32]) {
    for (x, sign) in x.iter_mut().zip(signs()) {
        *x *= sign;
    }
}

/// One factor, then sums and differences of elements `h` apart for `h` = 1, 2, 4, ...: in this order no
/// intermediate exceeds the norm of `x`.
fn transform(x: &mut [f32]) {
    let (p, scale) = (part_dim(x.len()), part_scale(x.len()));
    x.iter_mut().for_each(|x| *x *= scale);
    for part in x.chunks_exact_mut(p) {
        let mut h = 1;
        while h < p {
            for pair in part.chunks_exact_mut(2 * h) {
                let (low, high) = pair.split_at_mut(h);
                for (low, high) in low.iter_mut().zip(high) {
                    (*low, *high) = (*low + *high, *low - *high);
                }
            }
            h *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_keeps_dot_products_and_is_undone() {
        for d in [16, 48, 64, 80, 256, 512] {
            let a: Vec<f32> = (0..d).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect();
            let b: Vec<f32> = (0..d).map(|i| ((i * 53 % 97) as f32 - 40.0) / 25.0).collect();
            let dot = |a: &[f32], b: &[f32]| -> f64 {
                a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
            };
            let (mut ra, mut rb) = (a.clone(), b.clone());
            rotate(&mut ra);
            rotate(&mut rb);
            assert!((dot(&a, &b) - dot(&ra, &rb)).abs() < 1e-4, "{d}");
            unrotate(&mut ra);
            assert!(a.iter().zip(&ra).all(|(a, b)| (a - b).abs() < 1e-5), "{d}");
        }
    }

    #[test]
    fn one_element_spreads_evenly() {
        let mut x = [0.0f32; 256];
        x[17] = 1.0;
        rotate(&mut x);
        assert!(x.iter().all(|x| x.abs() == 1.0 / 16.0));
    }

    #[test]
    fn signs_are_balanced() {
        let sum: f32 = signs().iter().sum();
        assert!(sum.abs() < 60.0, "{sum}");
    }
}
