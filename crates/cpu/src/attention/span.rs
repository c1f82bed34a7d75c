//! Attention of the rows of a tile over spans of positions.

use std::marker::PhantomData;
use std::ops::Range;

use crate::kv::{Part, Stored};
use crate::math::exp;
use crate::parallel::Disjoint;
use crate::simd::{Chunk, Kernel, LANES, Simd};

use super::merge::Total;
use super::plan::RowTile;
use super::product::{Vectors, Weights, mix, scores};
use super::{Job, SPAN, TILE};

/// Queries from which on it pays to widen stored vectors once rather than at every use.
const WIDEN_FROM: usize = 8;

/// Where an item's result goes.
pub(super) enum Sink<'a> {
    /// All spans were merged: the finished rows.
    Output(&'a Disjoint<'a, f32>),
    /// One span: for each query a header chunk (maximum, sum) and the accumulator.
    Partials(&'a mut [Chunk]),
}

/// Memory of one thread, kept between calls. Arrays are indexed by query: row of the tile, then head of the group.
#[derive(Default)]
pub(super) struct Scratch {
    queries: Vec<Chunk>,
    weights: Vec<Weights>,
    softmax: Vec<Softmax>,
    acc: Vec<Chunk>,
    totals: Vec<Total>,
    total_acc: Vec<Chunk>,
    keys: Vec<Chunk>,
    values: Vec<Chunk>,
}

/// The running softmax of a span: weights are relative to `max`.
#[derive(Clone, Copy)]
struct Softmax {
    max: f32,
    /// One partial sum for each position mod 16.
    sums: Chunk,
}

impl Softmax {
    const EMPTY: Self = Self { max: f32::NEG_INFINITY, sums: [0.0; LANES] };
}

/// Some spans of one key/value head for the rows of a tile.
pub(super) struct Item<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) tile: &'a RowTile,
    pub(super) kv_head: usize,
    pub(super) spans: Range<usize>,
    pub(super) scratch: &'a mut Scratch,
    pub(super) sink: Sink<'a>,
}

impl<'a> Item<'a> {
    /// The item as a kernel for keys stored as `K` and values stored as `V`.
    pub(super) fn stored_as<K: Stored, V: Stored>(self) -> StoredItem<'a, K, V> {
        StoredItem { item: self, formats: PhantomData }
    }
}

/// An [`Item`] with the types of its stored elements.
pub(super) struct StoredItem<'a, K, V> {
    item: Item<'a>,
    formats: PhantomData<(K, V)>,
}

impl<K: Stored, V: Stored> Kernel for StoredItem<'_, K, V> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Item { job, tile, kv_head, spans, scratch, sink } = self.item;
        let work = Work { job, tile, kv_head, heads: job.heads_per_kv(), n: job.chunks() };
        work.load_queries(scratch);
        match sink {
            Sink::Output(out) => {
                work.clear_totals(scratch);
                for span in spans {
                    work.span::<S, K, V>(s, span, scratch);
                    work.merge(s, span, scratch);
                }
                work.finish(s, scratch, out);
            }
            Sink::Partials(out) => {
                for span in spans {
                    work.span::<S, K, V>(s, span, scratch);
                }
                work.write_partials(s, scratch, out);
            }
        }
    }
}

/// Shapes of the work at hand.
struct Work<'a> {
    job: &'a Job<'a>,
    tile: &'a RowTile,
    kv_head: usize,
    /// Query heads that share the key/value head.
    heads: usize,
    /// Chunks of a vector.
    n: usize,
}

impl Work<'_> {
    fn n_queries(&self) -> usize {
        self.tile.n * self.heads
    }

    /// Copies the queries next to each other, padded with zeros.
    fn load_queries(&self, scratch: &mut Scratch) {
        let layout = self.job.attention.layout;
        scratch.queries.clear();
        scratch.queries.resize(self.n_queries() * self.n, [0.0; LANES]);
        for (q, to) in scratch.queries.chunks_exact_mut(self.n).enumerate() {
            let (row, head) = self.row_and_head(q);
            let from = &self.job.qkv[row * layout.stride() + head * layout.head_dim..][..layout.head_dim];
            to.as_flattened_mut()[..layout.head_dim].copy_from_slice(from);
        }
        scratch.weights.resize(self.n_queries(), Weights([0.0; TILE + LANES]));
    }

    /// The batch's row and the query head of query `q`.
    fn row_and_head(&self, q: usize) -> (usize, usize) {
        (self.tile.first + q / self.heads, self.kv_head * self.heads + q % self.heads)
    }

    fn clear_totals(&self, scratch: &mut Scratch) {
        scratch.totals.clear();
        scratch.totals.resize(self.n_queries(), Total::EMPTY);
        scratch.total_acc.clear();
        scratch.total_acc.resize(self.n_queries() * self.n, [0.0; LANES]);
    }

    /// Leaves the softmax and accumulators of one span in the scratch.
    #[inline(always)]
    fn span<S: Simd, K: Stored, V: Stored>(&self, s: S, span: usize, scratch: &mut Scratch) {
        scratch.softmax.clear();
        scratch.softmax.resize(self.n_queries(), Softmax::EMPTY);
        scratch.acc.clear();
        scratch.acc.resize(self.n_queries() * self.n, [0.0; LANES]);
        let positions = span * SPAN..(span + 1) * SPAN;
        let begin = positions.start.max(self.tile.visible.start) / TILE;
        let end = positions.end.min(self.tile.visible.end).div_ceil(TILE);
        for tile in begin..end {
            let positions = tile * TILE..(tile + 1) * TILE;
            if positions.end <= self.tile.common {
                self.positions::<S, K, V>(s, positions, 0..self.tile.n, scratch);
            } else {
                self.each_row::<S, K, V>(s, positions, 0..self.tile.n, scratch);
            }
        }
    }

    /// The part of `positions` that row `row` of the tile sees.
    fn seen(&self, row: usize, positions: &Range<usize>) -> Range<usize> {
        let visible = self.job.visible(self.tile.first + row);
        visible.start.max(positions.start)..visible.end.min(positions.end)
    }

    /// Each of `rows` by itself over `positions`, which lie inside a tile of positions.
    #[inline(always)]
    fn each_row<S: Simd, K: Stored, V: Stored>(
        &self,
        s: S,
        positions: Range<usize>,
        rows: Range<usize>,
        scratch: &mut Scratch,
    ) {
        for row in rows {
            let seen = self.seen(row, &positions);
            if !seen.is_empty() {
                self.rows_together::<S, K, V>(s, row..row + 1, seen.clone(), seen, scratch);
            }
        }
    }

    /// `rows` over `positions`, which lie inside a tile of positions and in the same cells for all of them.
    #[inline(always)]
    fn positions<S: Simd, K: Stored, V: Stored>(
        &self,
        s: S,
        positions: Range<usize>,
        rows: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let (mut any, mut all) = (usize::MAX..0, positions.clone());
        for row in rows.clone() {
            let seen = self.seen(row, &positions);
            if !seen.is_empty() {
                any = any.start.min(seen.start)..any.end.max(seen.end);
            }
            all = all.start.max(seen.start)..all.end.min(seen.end);
        }
        if !all.is_empty() {
            self.rows_together::<S, K, V>(s, rows, any, all, scratch);
        } else if !any.is_empty() {
            self.each_row::<S, K, V>(s, positions, rows, scratch);
        }
    }

    /// `rows` over the positions `any`, of which each sees a part and all see `all`, which is not empty.
    #[inline(always)]
    fn rows_together<S: Simd, K: Stored, V: Stored>(
        &self,
        s: S,
        rows: Range<usize>,
        any: Range<usize>,
        all: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let (n, n_positions) = (self.n, any.len());
        let queries = rows.start * self.heads..rows.end * self.heads;
        let row = self.tile.first + rows.start;
        let widen = queries.len() >= WIDEN_FROM;
        let Scratch { queries: query, weights, softmax, acc, keys: wide_keys, values: wide_values, .. } =
            scratch;
        let query = &query[queries.start * n..queries.end * n];
        let weights = &mut weights[queries.clone()];
        let softmax = &mut softmax[queries.clone()];
        let acc = &mut acc[queries.start * n..queries.end * n];

        let keys = &mut [[].as_slice(); TILE];
        let keys = self.gather::<K>(Part::Keys, row, any.clone(), keys);
        let at = any.start % TILE;
        if widen && size_of::<K>() < size_of::<f32>() {
            let wide = &mut [[].as_slice(); TILE];
            scores(s, n, query, widened(s, n, keys, wide_keys, wide), at, weights);
        } else {
            scores(s, n, query, keys, at, weights);
        }
        for q in 0..queries.len() {
            let seen = self.seen(rows.start + q / self.heads, &any);
            let seen = seen.start - any.start + at..seen.end - any.start + at;
            softmax[q].update(
                s,
                &mut weights[q],
                seen,
                self.job.attention.scale,
                &mut acc[q * n..(q + 1) * n],
            );
        }

        let values = &mut [[].as_slice(); TILE];
        let values = self.gather::<V>(Part::Values, row, any.clone(), values);
        debug_assert_eq!(values.len(), n_positions);
        let ranges = Ranges { work: self, rows, any, all };
        if widen && size_of::<V>() < size_of::<f32>() {
            let wide = &mut [[].as_slice(); TILE];
            ranges.mix(s, weights, widened(s, n, values, wide_values, wide), acc);
        } else {
            ranges.mix(s, weights, values, acc);
        }
    }

    /// The vectors of `positions` on the path of the batch's row `row`.
    fn gather<'v, 'o, T: Stored>(
        &'v self,
        part: Part,
        row: usize,
        positions: Range<usize>,
        out: &'o mut [&'v [[T; LANES]]; TILE],
    ) -> &'o Vectors<'v, T> {
        let (group, view) = (self.job.group, &self.job.group.views[row]);
        let block_len = self.job.cache.spec().block_len;
        let mut position = positions.start;
        let mut filled = 0;
        while position < positions.end {
            let cell = group.cell(row, position, block_len);
            // Positions of one block lie in consecutive cells, those of a tail anywhere.
            let run = if position < view.shared as usize {
                (block_len - position % block_len).min(positions.end.min(view.shared as usize) - position)
            } else {
                1
            };
            let (layer, head) = (self.job.attention.layer, self.kv_head);
            let vectors = self.job.cache.vectors::<T>(part, layer, head, cell / block_len);
            let first = cell % block_len * self.n;
            for vector in vectors[first..first + run * self.n].chunks_exact(self.n) {
                out[filled] = vector;
                filled += 1;
            }
            position += run;
        }
        &out[..filled]
    }

    /// Merges the span in the scratch into the totals of the queries that see it.
    #[inline(always)]
    fn merge<S: Simd>(&self, s: S, span: usize, scratch: &mut Scratch) {
        let positions = span * SPAN..(span + 1) * SPAN;
        for q in 0..self.n_queries() {
            if self.seen(q / self.heads, &positions).is_empty() {
                continue;
            }
            let chunks = q * self.n..(q + 1) * self.n;
            let part = scratch.softmax[q].result(s);
            let (total, acc) = (&mut scratch.totals[q], &mut scratch.total_acc[chunks.clone()]);
            total.merge(s, acc, part, &scratch.acc[chunks]);
        }
    }

    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, scratch: &Scratch, out: &Disjoint<f32>) {
        for q in 0..self.n_queries() {
            let (row, head) = self.row_and_head(q);
            // SAFETY: this item alone writes these heads of these rows.
            let out =
                unsafe { out.range(self.job.output_offset(row, head), self.job.attention.layout.head_dim) };
            scratch.totals[q].finish(s, &scratch.total_acc[q * self.n..(q + 1) * self.n], out);
        }
    }

    #[inline(always)]
    fn write_partials<S: Simd>(&self, s: S, scratch: &Scratch, out: &mut [Chunk]) {
        for (q, out) in out.chunks_exact_mut(self.n + 1).enumerate() {
            let part = scratch.softmax[q].result(s);
            (out[0][0], out[0][1]) = (part.max, part.sum);
            out[1..].copy_from_slice(&scratch.acc[q * self.n..(q + 1) * self.n]);
        }
    }
}

impl Softmax {
    /// Turns the scores of the tile's positions `seen` into weights and rescales what was accumulated before to
    /// the new maximum.
    #[inline(always)]
    fn update<S: Simd>(
        &mut self,
        s: S,
        weights: &mut Weights,
        seen: Range<usize>,
        scale: f32,
        acc: &mut [Chunk],
    ) {
        let Weights(w) = weights;
        for at in [0, LANES] {
            s.store_at(s.mul(s.load_at(w, at), s.splat(scale)), &mut w[..TILE], at);
        }
        w[..seen.start].fill(f32::NEG_INFINITY);
        w[seen.end..TILE].fill(f32::NEG_INFINITY);
        let (low, high) = (s.load_at(w, 0), s.load_at(w, LANES));
        let tile_max = s.max_lane(s.max(low, high));
        let max = if self.max > tile_max { self.max } else { tile_max };
        let mut sums = s.load(&self.sums);
        if max != self.max {
            let kept = exp(s, s.splat(self.max - max));
            sums = s.mul(sums, kept);
            for acc in acc {
                s.store(s.mul(s.load(acc), kept), acc);
            }
            self.max = max;
        }
        let max = s.splat(max);
        let (low, high) = (exp(s, s.sub(low, max)), exp(s, s.sub(high, max)));
        s.store(s.add(s.add(sums, low), high), &mut self.sums);
        s.store_at(low, w, 0);
        s.store_at(high, w, LANES);
    }

    #[inline(always)]
    fn result<S: Simd>(&self, s: S) -> Total {
        Total { max: self.max, sum: s.sum(s.load(&self.sums)) }
    }
}

/// Which positions of a tile the rows of a product see.
struct Ranges<'a> {
    work: &'a Work<'a>,
    rows: Range<usize>,
    any: Range<usize>,
    all: Range<usize>,
}

impl Ranges<'_> {
    /// Adds the weighted values of the positions that each row sees to its accumulators, in ascending order. What
    /// a row does not see is not multiplied by zero but left out: it may be infinite.
    #[inline(always)]
    fn mix<S: Simd, V: Stored>(&self, s: S, weights: &[Weights], values: &Vectors<V>, acc: &mut [Chunk]) {
        let n = self.work.n;
        let vectors =
            |positions: &Range<usize>| positions.start - self.any.start..positions.end - self.any.start;
        let at = |position: usize| position % TILE;
        if self.all == self.any {
            return mix(s, n, weights, at(self.any.start), values, acc);
        }
        for q in 0..weights.len() {
            let before = self.seen(q).start..self.all.start;
            let (weights, acc) = (&weights[q..q + 1], &mut acc[q * n..(q + 1) * n]);
            mix(s, n, weights, at(before.start), &values[vectors(&before)], acc);
        }
        mix(s, n, weights, at(self.all.start), &values[vectors(&self.all)], acc);
        for q in 0..weights.len() {
            let after = self.all.end..self.seen(q).end;
            let (weights, acc) = (&weights[q..q + 1], &mut acc[q * n..(q + 1) * n]);
            mix(
                s,
                n,
                weights,
                after.start - self.any.start + at(self.any.start),
                &values[vectors(&after)],
                acc,
            );
        }
    }

    fn seen(&self, query: usize) -> Range<usize> {
        self.work.seen(self.rows.start + query / self.work.heads, &self.any)
    }
}

/// Widens `vectors` of `n` chunks into `storage`.
#[inline(always)]
fn widened<'w, 'o, S: Simd, T: Stored>(
    s: S,
    n: usize,
    vectors: &Vectors<T>,
    storage: &'w mut Vec<Chunk>,
    out: &'o mut [&'w [Chunk]; TILE],
) -> &'o Vectors<'w, f32> {
    storage.resize(TILE * n, [0.0; LANES]);
    for (vector, to) in vectors.iter().zip(storage.chunks_exact_mut(n)) {
        for (from, to) in vector.iter().zip(to) {
            s.store(T::load(s, from), to);
        }
    }
    for (out, vector) in out.iter_mut().zip(storage.chunks_exact(n)) {
        *out = vector;
    }
    &out[..vectors.len()]
}
