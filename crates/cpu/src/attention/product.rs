//! The two products of attention, several queries by several positions at a time.

use crate::kv::stored::{Stored, Widening};
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
    pub(super) fn write(&mut self, at: usize, values: &[f32]) {
        self.0.as_flattened_mut()[at..at + values.len()].copy_from_slice(values);
    }
}

/// Vectors of a tile's positions, each as groups of stored elements.
pub(super) type Vectors<'a, T> = [&'a [T]];

/// How the elements of a tile's vectors are cut into blocks that share a scale.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a> {
    /// Groups of a block; all groups of a vector where there are no scales.
    pub(super) groups: usize,
    /// One number for each position of the tile, a block after the other; absent where there are no scales.
    pub(super) scales: Option<&'a [Weights]>,
}

/// `weights[q][at + i] = queries[q] . keys[i]` for each query. Up to three numbers after the last are overwritten.
pub(super) struct Scores<'a, K> {
    /// Groups of a vector.
    pub(super) n: usize,
    pub(super) queries: &'a [Chunk],
    pub(super) keys: &'a Vectors<'a, K>,
    pub(super) blocks: Blocks<'a>,
    pub(super) at: usize,
    pub(super) weights: &'a mut [Weights],
}

impl<K: Stored> Kernel for Scores<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (n, table) = (self.n, K::table());
        // Keys outside, so that a few keys stay in the first-level cache while all queries pass.
        for (i, keys) in self.keys.chunks(4).enumerate() {
            let last = keys.len() - 1;
            let keys =
                [&keys[0][..n], &keys[last.min(1)][..n], &keys[last.min(2)][..n], &keys[last.min(3)][..n]];
            let dots = Dots { n, table, blocks: self.blocks, at: self.at + 4 * i };
            dots.of_four(s, self.queries, &keys, self.weights);
        }
    }
}

/// Dot products with the keys of positions from `at` on.
struct Dots<'a, T> {
    n: usize,
    table: T,
    blocks: Blocks<'a>,
    at: usize,
}

impl<T: Copy> Dots<'_, T> {
    /// The products of all queries with four keys.
    #[inline(always)]
    fn of_four<S: Simd, K: Stored<Table = T>>(
        &self,
        s: S,
        queries: &[Chunk],
        keys: &[&[K]; 4],
        weights: &mut [Weights],
    ) {
        let (width, at) = (2 * self.n, self.at);
        let mut q = 0;
        if S::MANY_REGISTERS {
            while q + 4 <= weights.len() {
                let sums = s.sum4x4(self.dots::<S, K, 4, 4>(s, &queries[q * width..], keys, 0));
                for j in 0..4 {
                    weights[q + j].write(at, &sums[j]);
                }
                q += 4;
            }
            while q + 2 <= weights.len() {
                let [a, b] = self.dots::<S, K, 2, 4>(s, &queries[q * width..], keys, 0);
                weights[q].write(at, &s.sum4(a));
                weights[q + 1].write(at, &s.sum4(b));
                q += 2;
            }
        } else {
            while K::WIDENING == Widening::Costly && q + 4 <= weights.len() {
                // Four queries to a key: a key is widened once.
                for (j, key) in keys.iter().enumerate() {
                    let [[a], [b], [c], [d]] = self.dots::<S, K, 4, 1>(s, &queries[q * width..], &[key], j);
                    for (k, sum) in s.sum4([a, b, c, d]).into_iter().enumerate() {
                        weights[q + k].write(at + j, &[sum]);
                    }
                }
                q += 4;
            }
            while q + 2 <= weights.len() {
                for half in 0..2 {
                    let keys = &[keys[2 * half], keys[2 * half + 1]];
                    let [[a, b], [c, d]] = self.dots::<S, K, 2, 2>(s, &queries[q * width..], keys, 2 * half);
                    let sums = s.sum4([a, b, c, d]);
                    weights[q].write(at + 2 * half, &sums[..2]);
                    weights[q + 1].write(at + 2 * half, &sums[2..]);
                }
                q += 2;
            }
        }
        while q < weights.len() {
            let [sums] = self.dots::<S, K, 1, 4>(s, &queries[q * width..], keys, 0);
            weights[q].write(at, &s.sum4(sums));
            q += 1;
        }
    }

    /// Partial sums of the dot products of `Q` queries and `P` keys, the first of which is that of position
    /// `at + skip`: sums over the blocks of their scale times the sums of their elements.
    #[inline(always)]
    fn dots<S: Simd, K: Stored<Table = T>, const Q: usize, const P: usize>(
        &self,
        s: S,
        queries: &[Chunk],
        keys: &[&[K]; P],
        skip: usize,
    ) -> [[S::F; P]; Q] {
        let n = self.n;
        let (queries, _) = queries[..Q * 2 * n].as_chunks::<2>();
        let Some(scales) = self.blocks.scales else {
            return self.block::<S, K, Q, P>(s, queries, keys, (0, n));
        };
        let mut totals = [[s.splat(0.0); P]; Q];
        for (b, scales) in scales.iter().enumerate() {
            let groups = (b * self.blocks.groups, (b + 1) * self.blocks.groups);
            let sums = self.block::<S, K, Q, P>(s, queries, keys, groups);
            for p in 0..P {
                let scale = s.splat(scales.get(self.at + skip + p));
                for q in 0..Q {
                    totals[q][p] = s.mul_add(sums[q][p], scale, totals[q][p]);
                }
            }
        }
        totals
    }

    /// Partial sums over the groups from `begin` to `end`.
    #[inline(always)]
    fn block<S: Simd, K: Stored<Table = T>, const Q: usize, const P: usize>(
        &self,
        s: S,
        queries: &[[Chunk; 2]],
        keys: &[&[K]; P],
        (begin, end): (usize, usize),
    ) -> [[S::F; P]; Q] {
        let mut sums = [[s.splat(0.0); P]; Q];
        for g in begin..end {
            let mut k = [[s.splat(0.0); 2]; P];
            for p in 0..P {
                k[p] = keys[p][g].load(s, self.table);
            }
            for q in 0..Q {
                let query = &queries[q * self.n + g];
                for half in 0..2 {
                    let query = s.load(&query[half]);
                    for p in 0..P {
                        sums[q][p] = s.mul_add(query, k[p][half], sums[q][p]);
                    }
                }
            }
        }
        sums
    }
}

/// `weights[q] += sum_b sums[q][b] * offsets[b]` for all positions of a tile: the part of the products that the
/// offsets of the keys' blocks make, with `sums` the sums of a query's elements, a block each.
pub(super) struct AddOffsets<'a> {
    pub(super) sums: &'a [f32],
    pub(super) offsets: &'a [Weights],
    pub(super) weights: &'a mut [Weights],
}

impl Kernel for AddOffsets<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (weights, sums) in self.weights.iter_mut().zip(self.sums.chunks_exact(self.offsets.len())) {
            for c in 0..TILE / LANES {
                let mut w = s.load(&weights.0[c]);
                for (offsets, &sum) in self.offsets.iter().zip(sums) {
                    w = s.mul_add(s.splat(sum), s.load(&offsets.0[c]), w);
                }
                s.store(w, &mut weights.0[c]);
            }
        }
    }
}

/// `out[q][b] = weights[q] * scales[b]` for all positions of a tile.
pub(super) struct ScaleWeights<'a> {
    pub(super) weights: &'a [Weights],
    pub(super) scales: &'a [Weights],
    pub(super) out: &'a mut [Weights],
}

impl Kernel for ScaleWeights<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (weights, out) in self.weights.iter().zip(self.out.chunks_exact_mut(self.scales.len())) {
            for (scales, out) in self.scales.iter().zip(out) {
                for c in 0..TILE / LANES {
                    s.store(s.mul(s.load(&weights.0[c]), s.load(&scales.0[c])), &mut out.0[c]);
                }
            }
        }
    }
}

/// `acc[q][b] += weights[q] * offsets[b]` for all positions of a tile, a partial sum for each position mod 16. The
/// accumulators of a query are the last ones of `stride`.
pub(super) struct MixOffsets<'a> {
    pub(super) weights: &'a [Weights],
    pub(super) offsets: &'a [Weights],
    pub(super) stride: usize,
    pub(super) acc: &'a mut [Chunk],
}

impl Kernel for MixOffsets<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let first = self.stride - self.offsets.len();
        for (weights, acc) in self.weights.iter().zip(self.acc.chunks_exact_mut(self.stride)) {
            for (offsets, acc) in self.offsets.iter().zip(&mut acc[first..]) {
                let mut sum = s.load(acc);
                for c in 0..TILE / LANES {
                    sum = s.mul_add(s.load(&weights.0[c]), s.load(&offsets.0[c]), sum);
                }
                s.store(sum, acc);
            }
        }
    }
}

/// `acc[q] += sum_i weights[q][at + i] * values[i]`, in ascending order of `i`.
pub(super) struct Mix<'a, V> {
    /// Groups of a vector.
    pub(super) n: usize,
    /// Groups of a block; a query has one set of weights for each.
    pub(super) groups: usize,
    /// Chunks from one query's accumulator to the next.
    pub(super) stride: usize,
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
        for block in 0..self.n / self.groups {
            let (mut g, end) = (block * self.groups, (block + 1) * self.groups);
            if S::MANY_REGISTERS {
                while g + 2 <= end {
                    self.columns::<S, 4, 2>(s, g, block);
                    g += 2;
                }
            }
            while g < end {
                if V::WIDENING == Widening::Costly {
                    self.half::<S, 4, 0>(s, g, block);
                    self.half::<S, 4, 1>(s, g, block);
                } else {
                    self.columns::<S, 2, 1>(s, g, block);
                }
                g += 1;
            }
        }
    }
}

impl<V: Stored> Mix<'_, V> {
    /// The `G` groups from `g`, `Q` queries at a time.
    #[inline(always)]
    fn columns<S: Simd, const Q: usize, const G: usize>(&mut self, s: S, g: usize, block: usize) {
        let n_queries = self.weights.len() / (self.n / self.groups);
        let mut q = 0;
        while q + Q <= n_queries {
            self.block::<S, Q, G>(s, q, g, block);
            q += Q;
        }
        while q < n_queries {
            self.block::<S, 1, G>(s, q, g, block);
            q += 1;
        }
    }

    /// Half of group `g`, `Q` queries at a time.
    #[inline(always)]
    fn half<S: Simd, const Q: usize, const HALF: usize>(&mut self, s: S, g: usize, block: usize) {
        let n_queries = self.weights.len() / (self.n / self.groups);
        let mut q = 0;
        while q + Q <= n_queries {
            self.half_block::<S, Q, HALF>(s, q, g, block);
            q += Q;
        }
        while q < n_queries {
            self.half_block::<S, 1, HALF>(s, q, g, block);
            q += 1;
        }
    }

    /// Half of group `g` of the `Q` queries from `q`. Of what loading a group gives, the other half is not used and
    /// so not computed.
    #[inline(always)]
    fn half_block<S: Simd, const Q: usize, const HALF: usize>(
        &mut self,
        s: S,
        q: usize,
        g: usize,
        block: usize,
    ) {
        let (table, n_blocks, stride) = (V::table(), self.n / self.groups, self.stride);
        let (weights, acc) = (&self.weights[q * n_blocks..], &mut self.acc[q * stride..]);
        let chunk = 2 * g + HALF;
        let mut sums = [s.splat(0.0); Q];
        for q in 0..Q {
            sums[q] = s.load(&acc[q * stride + chunk]);
        }
        for (i, value) in self.values.iter().enumerate() {
            let v = value[g].load(s, table)[HALF];
            for q in 0..Q {
                let weight = s.splat(weights[q * n_blocks + block].get(self.at + i));
                sums[q] = s.mul_add(weight, v, sums[q]);
            }
        }
        for q in 0..Q {
            s.store(sums[q], &mut acc[q * stride + chunk]);
        }
    }

    /// The `G` groups from `g` of the `Q` queries from `q`.
    #[inline(always)]
    fn block<S: Simd, const Q: usize, const G: usize>(&mut self, s: S, q: usize, g: usize, block: usize) {
        let (table, n_blocks, stride) = (V::table(), self.n / self.groups, self.stride);
        let (weights, acc) = (&self.weights[q * n_blocks..], &mut self.acc[q * stride..]);
        let mut sums = [[[s.splat(0.0); 2]; G]; Q];
        for q in 0..Q {
            for j in 0..G {
                for half in 0..2 {
                    sums[q][j][half] = s.load(&acc[q * stride + 2 * (g + j) + half]);
                }
            }
        }
        for (i, value) in self.values.iter().enumerate() {
            let value = &value[g..g + G];
            let mut v = [[s.splat(0.0); 2]; G];
            for j in 0..G {
                v[j] = value[j].load(s, table);
            }
            for q in 0..Q {
                let weight = s.splat(weights[q * n_blocks + block].get(self.at + i));
                for j in 0..G {
                    for half in 0..2 {
                        sums[q][j][half] = s.mul_add(weight, v[j][half], sums[q][j][half]);
                    }
                }
            }
        }
        for q in 0..Q {
            for j in 0..G {
                for half in 0..2 {
                    s.store(sums[q][j][half], &mut acc[q * stride + 2 * (g + j) + half]);
                }
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
        let (n, table) = (self.vectors.first().map_or(0, |v| v.len()).max(1), T::table());
        for (vector, out) in self.vectors.iter().zip(self.out.chunks_exact_mut(2 * n)) {
            let (out, _) = out.as_chunks_mut::<2>();
            for (from, to) in vector.iter().zip(out) {
                let [low, high] = from.load(s, table);
                s.store(low, &mut to[0]);
                s.store(high, &mut to[1]);
            }
        }
    }
}
