//! The two products of attention, several queries by several positions at a time.

use crate::kv::Stored;
use crate::simd::{Chunk, LANES, Simd};

use super::TILE;

/// One number for each position of a tile, and room for the overhang of a group of positions.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Weights(pub(super) [f32; TILE + LANES]);

/// Vectors of a tile's positions, each as chunks of stored elements.
pub(super) type Vectors<'a, T> = [&'a [[T; LANES]]];

/// `weights[q][at + i] = queries[q] . keys[i]` for each query of `n` chunks. Up to three numbers after the last
/// are overwritten.
#[inline(always)]
pub(super) fn scores<S: Simd, K: Stored>(
    s: S,
    n: usize,
    queries: &[Chunk],
    keys: &Vectors<K>,
    at: usize,
    weights: &mut [Weights],
) {
    // Keys outside, so that a few keys stay in the first-level cache while all queries pass.
    for (i, keys) in keys.chunks(4).enumerate() {
        let at = at + 4 * i;
        let keys: [&[[K; LANES]]; 4] = [0, 1, 2, 3].map(|j| &keys[j.min(keys.len() - 1)][..n]);
        let mut q = 0;
        if S::MANY_REGISTERS {
            while q + 4 <= weights.len() {
                let sums = s.sum4x4(dots::<S, K, 4, 4>(s, n, &queries[q * n..], &keys));
                for j in 0..4 {
                    weights[q + j].0[at..at + 4].copy_from_slice(&sums[j]);
                }
                q += 4;
            }
            while q + 2 <= weights.len() {
                let [a, b] = dots::<S, K, 2, 4>(s, n, &queries[q * n..], &keys);
                weights[q].0[at..at + 4].copy_from_slice(&s.sum4(a));
                weights[q + 1].0[at..at + 4].copy_from_slice(&s.sum4(b));
                q += 2;
            }
        } else {
            while q + 2 <= weights.len() {
                for half in 0..2 {
                    let keys = [keys[2 * half], keys[2 * half + 1]];
                    let [[a, b], [c, d]] = dots::<S, K, 2, 2>(s, n, &queries[q * n..], &keys);
                    let sums = s.sum4([a, b, c, d]);
                    let at = at + 2 * half;
                    weights[q].0[at..at + 2].copy_from_slice(&sums[..2]);
                    weights[q + 1].0[at..at + 2].copy_from_slice(&sums[2..]);
                }
                q += 2;
            }
        }
        while q < weights.len() {
            let [sums] = dots::<S, K, 1, 4>(s, n, &queries[q * n..], &keys);
            weights[q].0[at..at + 4].copy_from_slice(&s.sum4(sums));
            q += 1;
        }
    }
}

/// Partial sums of the dot products of `Q` queries and `P` keys of `n` chunks.
#[inline(always)]
fn dots<S: Simd, K: Stored, const Q: usize, const P: usize>(
    s: S,
    n: usize,
    queries: &[Chunk],
    keys: &[&[[K; LANES]]; P],
) -> [[S::F; P]; Q] {
    let queries = &queries[..Q * n];
    let mut sums = [[s.splat(0.0); P]; Q];
    for c in 0..n {
        let mut k = [s.splat(0.0); P];
        for p in 0..P {
            k[p] = K::load(s, &keys[p][c]);
        }
        for q in 0..Q {
            let query = s.load(&queries[q * n + c]);
            for p in 0..P {
                sums[q][p] = s.mul_add(query, k[p], sums[q][p]);
            }
        }
    }
    sums
}

/// `acc[q] += sum_i weights[q][at + i] * values[i]`, in ascending order of `i`, for accumulators of `n` chunks.
#[inline(always)]
pub(super) fn mix<S: Simd, V: Stored>(
    s: S,
    n: usize,
    weights: &[Weights],
    at: usize,
    values: &Vectors<V>,
    acc: &mut [Chunk],
) {
    if values.is_empty() {
        return;
    }
    // Parts of the values outside, so that they stay in the first-level cache while all queries pass.
    let mut c = 0;
    if S::MANY_REGISTERS {
        while c + 4 <= n {
            mix_columns::<S, V, 4, 4>(s, n, weights, at, values, acc, c);
            c += 4;
        }
    } else {
        while c + 2 <= n {
            mix_columns::<S, V, 2, 2>(s, n, weights, at, values, acc, c);
            c += 2;
        }
    }
    while c < n {
        mix_columns::<S, V, 4, 1>(s, n, weights, at, values, acc, c);
        c += 1;
    }
}

/// The columns of `C` chunks from `c`, `Q` queries at a time.
#[inline(always)]
fn mix_columns<S: Simd, V: Stored, const Q: usize, const C: usize>(
    s: S,
    n: usize,
    weights: &[Weights],
    at: usize,
    values: &Vectors<V>,
    acc: &mut [Chunk],
    c: usize,
) {
    let mut q = 0;
    while q + Q <= weights.len() {
        mix_block::<S, V, Q, C>(s, n, &weights[q..], at, values, &mut acc[q * n..], c);
        q += Q;
    }
    while q < weights.len() {
        mix_block::<S, V, 1, C>(s, n, &weights[q..], at, values, &mut acc[q * n..], c);
        q += 1;
    }
}

#[inline(always)]
fn mix_block<S: Simd, V: Stored, const Q: usize, const C: usize>(
    s: S,
    n: usize,
    weights: &[Weights],
    at: usize,
    values: &Vectors<V>,
    acc: &mut [Chunk],
    c: usize,
) {
    let (weights, acc) = (&weights[..Q], &mut acc[..Q * n]);
    let mut sums = [[s.splat(0.0); C]; Q];
    for q in 0..Q {
        for j in 0..C {
            sums[q][j] = s.load(&acc[q * n + c + j]);
        }
    }
    for (i, value) in values.iter().enumerate() {
        let value = &value[c..c + C];
        let mut v = [s.splat(0.0); C];
        for j in 0..C {
            v[j] = V::load(s, &value[j]);
        }
        for q in 0..Q {
            let weight = s.splat(weights[q].0[at + i]);
            for j in 0..C {
                sums[q][j] = s.mul_add(weight, v[j], sums[q][j]);
            }
        }
    }
    for q in 0..Q {
        for j in 0..C {
            s.store(sums[q][j], &mut acc[q * n + c + j]);
        }
    }
}
