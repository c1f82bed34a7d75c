//! The two products of attention, several queries by several positions at a time.

use crate::kv::Stored;
use crate::simd::{Chunk, Kernel, LANES, Simd};

use super::TILE;

/// One number for each position of a tile, and room for the overhang of a group of positions.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub(super) struct Weights(pub(super) [Chunk; TILE / LANES + 1]);

impl Weights {
    /// The number of position `i`.
    #[inline(always)]
    fn get(&self, i: usize) -> f32 {
        self.0.as_flattened()[i]
    }

    /// Sets the numbers from position `at` on.
    #[inline(always)]
    fn write(&mut self, at: usize, values: &[f32]) {
        self.0.as_flattened_mut()[at..at + values.len()].copy_from_slice(values);
    }
}

/// Vectors of a tile's positions, each as chunks of stored elements.
pub(super) type Vectors<'a, T> = [&'a [[T; LANES]]];

/// `weights[q][at + i] = queries[q] . keys[i]` for each query. Up to three numbers after the last are overwritten.
pub(super) struct Scores<'a, K> {
    /// Chunks of a vector.
    pub(super) n: usize,
    pub(super) queries: &'a [Chunk],
    pub(super) keys: &'a Vectors<'a, K>,
    pub(super) at: usize,
    pub(super) weights: &'a mut [Weights],
}

impl<K: Stored> Kernel for Scores<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Keys outside, so that a few keys stay in the first-level cache while all queries pass.
        for (i, keys) in self.keys.chunks(4).enumerate() {
            let last = keys.len() - 1;
            let n = self.n;
            let keys =
                [&keys[0][..n], &keys[last.min(1)][..n], &keys[last.min(2)][..n], &keys[last.min(3)][..n]];
            scores_of_four(s, n, self.queries, &keys, self.at + 4 * i, self.weights);
        }
    }
}

/// The products of all queries with four keys.
#[inline(always)]
fn scores_of_four<S: Simd, K: Stored>(
    s: S,
    n: usize,
    queries: &[Chunk],
    keys: &[&[[K; LANES]]; 4],
    at: usize,
    weights: &mut [Weights],
) {
    let mut q = 0;
    if S::MANY_REGISTERS {
        while q + 4 <= weights.len() {
            let sums = s.sum4x4(dots::<S, K, 4, 4>(s, n, &queries[q * n..], keys));
            for j in 0..4 {
                weights[q + j].write(at, &sums[j]);
            }
            q += 4;
        }
        while q + 2 <= weights.len() {
            let [a, b] = dots::<S, K, 2, 4>(s, n, &queries[q * n..], keys);
            weights[q].write(at, &s.sum4(a));
            weights[q + 1].write(at, &s.sum4(b));
            q += 2;
        }
    } else {
        while q + 2 <= weights.len() {
            for half in 0..2 {
                let keys = &[keys[2 * half], keys[2 * half + 1]];
                let [[a, b], [c, d]] = dots::<S, K, 2, 2>(s, n, &queries[q * n..], keys);
                let sums = s.sum4([a, b, c, d]);
                weights[q].write(at + 2 * half, &sums[..2]);
                weights[q + 1].write(at + 2 * half, &sums[2..]);
            }
            q += 2;
        }
    }
    while q < weights.len() {
        let [sums] = dots::<S, K, 1, 4>(s, n, &queries[q * n..], keys);
        weights[q].write(at, &s.sum4(sums));
        q += 1;
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

/// `acc[q] += sum_i weights[q][at + i] * values[i]`, in ascending order of `i`.
pub(super) struct Mix<'a, V> {
    /// Chunks of a vector.
    pub(super) n: usize,
    pub(super) weights: &'a [Weights],
    pub(super) at: usize,
    pub(super) values: &'a Vectors<'a, V>,
    pub(super) acc: &'a mut [Chunk],
}

impl<V: Stored> Kernel for Mix<'_, V> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        // Parts of the values outside, so that they stay in the first-level cache while all queries pass.
        let mut c = 0;
        if S::MANY_REGISTERS {
            while c + 4 <= self.n {
                self.columns::<S, 4, 4>(s, c);
                c += 4;
            }
        } else {
            while c + 2 <= self.n {
                self.columns::<S, 2, 2>(s, c);
                c += 2;
            }
        }
        while c < self.n {
            self.columns::<S, 4, 1>(s, c);
            c += 1;
        }
    }
}

impl<V: Stored> Mix<'_, V> {
    /// The `C` chunks from `c`, `Q` queries at a time.
    #[inline(always)]
    fn columns<S: Simd, const Q: usize, const C: usize>(&mut self, s: S, c: usize) {
        let mut q = 0;
        while q + Q <= self.weights.len() {
            self.block::<S, Q, C>(s, q, c);
            q += Q;
        }
        while q < self.weights.len() {
            self.block::<S, 1, C>(s, q, c);
            q += 1;
        }
    }

    /// The `C` chunks from `c` of the `Q` queries from `q`.
    #[inline(always)]
    fn block<S: Simd, const Q: usize, const C: usize>(&mut self, s: S, q: usize, c: usize) {
        let n = self.n;
        let (weights, acc) = (&self.weights[q..q + Q], &mut self.acc[q * n..(q + Q) * n]);
        let mut sums = [[s.splat(0.0); C]; Q];
        for q in 0..Q {
            for j in 0..C {
                sums[q][j] = s.load(&acc[q * n + c + j]);
            }
        }
        for (i, value) in self.values.iter().enumerate() {
            let value = &value[c..c + C];
            let mut v = [s.splat(0.0); C];
            for j in 0..C {
                v[j] = V::load(s, &value[j]);
            }
            for q in 0..Q {
                let weight = s.splat(weights[q].get(self.at + i));
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
}

/// Widens vectors into chunks one after the other.
pub(super) struct Widen<'a, T> {
    pub(super) vectors: &'a Vectors<'a, T>,
    pub(super) out: &'a mut [Chunk],
}

impl<T: Stored> Kernel for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.vectors.first().map_or(0, |v| v.len()).max(1);
        for (vector, out) in self.vectors.iter().zip(self.out.chunks_exact_mut(n)) {
            for (from, to) in vector.iter().zip(out) {
                s.store(T::load(s, from), to);
            }
        }
    }
}
