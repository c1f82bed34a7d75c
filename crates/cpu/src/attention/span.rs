//! Attention of the rows of a tile over spans of positions: which products are taken of what. The products
//! themselves are kernels.

use std::ops::Range;

use lapidary_backend::KvFormat;

use crate::kv::Part;
use crate::kv::rotate::Rotate;
use crate::kv::stored::{F16, F32, GROUP, Stored, Tq4, Tq5, Tq6, Tq8, Widening};
use crate::linear::isa::Isa;
use crate::parallel::Disjoint;
use crate::simd::{Chunk, Kernel, LANES, Simd};

use super::merge::{Finish, MergeSpan, Total};
use super::plan::RowTile;
use super::product::{AddOffsets, Blocks, Mix, MixOffsets, ScaleWeights, Scores, Vectors, Weights, Widen};
use super::softmax::{Softmax, Update};
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
    /// Sums of the queries' blocks, for keys with offsets.
    query_sums: Vec<f32>,
    weights: Vec<Weights>,
    /// Weights times the scales of the values, one set a block.
    scaled: Vec<Weights>,
    /// Scales and offsets of the vectors at hand.
    scales: Vec<Weights>,
    softmax: Vec<Softmax>,
    acc: Vec<Chunk>,
    totals: Vec<Total>,
    total_acc: Vec<Chunk>,
    wide: Vec<Chunk>,
}

/// Some spans of one key/value head for the rows of a tile.
pub(super) struct Item<'a> {
    pub(super) isa: Isa,
    pub(super) job: &'a Job<'a>,
    pub(super) tile: &'a RowTile,
    pub(super) kv_head: usize,
    pub(super) spans: Range<usize>,
}

impl Item<'_> {
    /// Computes the item.
    pub(super) fn run(&self, scratch: &mut Scratch, sink: Sink) {
        self.load_queries(scratch);
        match sink {
            Sink::Output(out) => {
                self.clear_totals(scratch);
                for span in self.spans.clone() {
                    self.span(span, scratch);
                    self.merge(span, scratch);
                }
                self.finish(scratch, out);
            }
            Sink::Partials(out) => {
                for span in self.spans.clone() {
                    self.span(span, scratch);
                }
                self.write_partials(scratch, out);
            }
        }
    }

    /// Query heads that share the key/value head.
    fn heads(&self) -> usize {
        self.job.heads_per_kv()
    }

    /// Chunks of a vector.
    fn n(&self) -> usize {
        self.job.chunks()
    }

    /// Chunks of an accumulator.
    fn acc(&self) -> usize {
        self.job.value_form().acc_chunks()
    }

    /// Groups of a vector.
    fn groups(&self) -> usize {
        self.n() * LANES / GROUP
    }

    fn n_queries(&self) -> usize {
        self.tile.n * self.heads()
    }

    /// Copies the queries next to each other, padded with zeros.
    fn load_queries(&self, scratch: &mut Scratch) {
        let layout = self.job.attention.layout;
        scratch.queries.clear();
        scratch.queries.resize(self.n_queries() * self.n(), [0.0; LANES]);
        for (q, to) in scratch.queries.chunks_exact_mut(self.n()).enumerate() {
            let (row, head) = self.row_and_head(q);
            let from = &self.job.qkv[row * layout.stride() + head * layout.head_dim..][..layout.head_dim];
            to.as_flattened_mut()[..layout.head_dim].copy_from_slice(from);
        }
        self.rotate_queries(scratch);
        scratch.weights.resize(self.n_queries(), Weights::default());
    }

    /// Rotates the queries as the keys are, and sums their blocks where keys have offsets.
    fn rotate_queries(&self, scratch: &mut Scratch) {
        let (cache, dim) = (self.job.cache, self.job.attention.layout.head_dim);
        if cache.format(Part::Keys).turbo_bits().is_none() {
            return;
        }
        scratch.query_sums.clear();
        for query in scratch.queries.chunks_exact_mut(self.n()) {
            self.isa.run(Rotate(&mut query[..dim / LANES]));
            if cache.format(Part::Keys).has_offsets() {
                let sums = query.chunks_exact(cache.block_chunks(Part::Keys)).map(|b| self.isa.run(Sum(b)));
                scratch.query_sums.extend(sums);
            }
        }
    }

    /// The batch's row and the query head of query `q`.
    fn row_and_head(&self, q: usize) -> (usize, usize) {
        (self.tile.first + q / self.heads(), self.kv_head * self.heads() + q % self.heads())
    }

    fn clear_totals(&self, scratch: &mut Scratch) {
        scratch.totals.clear();
        scratch.totals.resize(self.n_queries(), Total::EMPTY);
        scratch.total_acc.clear();
        scratch.total_acc.resize(self.n_queries() * self.acc(), [0.0; LANES]);
    }

    /// Leaves the softmax and accumulators of one span in the scratch.
    fn span(&self, span: usize, scratch: &mut Scratch) {
        scratch.softmax.clear();
        scratch.softmax.resize(self.n_queries(), Softmax::EMPTY);
        scratch.acc.clear();
        scratch.acc.resize(self.n_queries() * self.acc(), [0.0; LANES]);
        let begin = (span * SPAN).max(self.tile.visible.start) / TILE;
        let end = ((span + 1) * SPAN).min(self.tile.visible.end).div_ceil(TILE);
        for tile in begin..end {
            let positions = tile * TILE..(tile + 1) * TILE;
            if positions.end <= self.tile.common {
                self.positions(positions, scratch);
            } else {
                self.each_row(positions, scratch);
            }
        }
    }

    /// The part of `positions` that row `row` of the tile sees.
    fn seen(&self, row: usize, positions: &Range<usize>) -> Range<usize> {
        let visible = self.job.visible(self.tile.first + row);
        visible.start.max(positions.start)..visible.end.min(positions.end)
    }

    /// Each row by itself over `positions`, which lie inside a tile of positions.
    fn each_row(&self, positions: Range<usize>, scratch: &mut Scratch) {
        for row in 0..self.tile.n {
            let seen = self.seen(row, &positions);
            if !seen.is_empty() {
                self.step(&Step { rows: row..row + 1, any: seen.clone(), all: seen }, scratch);
            }
        }
    }

    /// All rows over `positions`, which lie inside a tile of positions and in the same cells for every row.
    fn positions(&self, positions: Range<usize>, scratch: &mut Scratch) {
        // Empty until a row sees something.
        let mut any = positions.end..positions.start;
        let mut all = positions.clone();
        for row in 0..self.tile.n {
            let seen = self.seen(row, &positions);
            if !seen.is_empty() {
                any = any.start.min(seen.start)..any.end.max(seen.end);
            }
            all = all.start.max(seen.start)..all.end.min(seen.end);
        }
        if !all.is_empty() {
            self.step(&Step { rows: 0..self.tile.n, any, all }, scratch);
        } else if !any.is_empty() {
            self.each_row(positions, scratch);
        }
    }

    fn step(&self, step: &Step, scratch: &mut Scratch) {
        match self.job.cache.format(Part::Keys) {
            KvFormat::F32 => self.scores::<F32>(step, scratch),
            KvFormat::F16 => self.scores::<F16>(step, scratch),
            KvFormat::Tq8 => self.scores::<Tq8>(step, scratch),
            KvFormat::Tq6 => self.scores::<Tq6>(step, scratch),
            KvFormat::Tq5 => self.scores::<Tq5>(step, scratch),
            KvFormat::Tq4 => self.scores::<Tq4>(step, scratch),
        }
        self.update(step, scratch);
        match self.job.cache.format(Part::Values) {
            KvFormat::F32 => self.mix::<F32>(step, scratch),
            KvFormat::F16 => self.mix::<F16>(step, scratch),
            KvFormat::Tq8 => self.mix::<Tq8>(step, scratch),
            KvFormat::Tq6 => self.mix::<Tq6>(step, scratch),
            KvFormat::Tq5 => self.mix::<Tq5>(step, scratch),
            KvFormat::Tq4 => self.mix::<Tq4>(step, scratch),
        }
    }

    /// The queries of a step.
    fn queries(&self, step: &Step) -> Range<usize> {
        step.rows.start * self.heads()..step.rows.end * self.heads()
    }

    fn scores<K: Stored>(&self, step: &Step, scratch: &mut Scratch) {
        let (chunks, queries, at) = (self.n(), self.queries(step), step.any.start % TILE);
        let keys = &mut [[].as_slice(); TILE];
        let keys = self.gather::<K>(Part::Keys, step, keys);
        let (blocks, offsets) = self.gather_scales(Part::Keys, step, &mut scratch.scales);
        let weights = &mut scratch.weights[queries.clone()];
        let query_chunks = &scratch.queries[queries.start * chunks..queries.end * chunks];
        let n = self.groups();
        if queries.len() >= WIDEN_FROM && K::WIDENING != Widening::None {
            let slots = &mut [[].as_slice(); TILE];
            let keys = self.widen(keys, &mut scratch.wide, slots);
            self.isa.run(Scores { n, queries: query_chunks, keys, blocks, at, weights });
        } else {
            self.isa.run(Scores { n, queries: query_chunks, keys, blocks, at, weights });
        }
        if !offsets.is_empty() {
            let sums = &scratch.query_sums[queries.start * offsets.len()..queries.end * offsets.len()];
            self.isa.run(AddOffsets { sums, offsets, weights: &mut scratch.weights[queries] });
        }
    }

    fn update(&self, step: &Step, scratch: &mut Scratch) {
        let (n, heads) = (self.acc(), self.heads());
        let Scratch { weights, softmax, acc, .. } = scratch;
        for row in step.rows.clone() {
            let seen = self.seen(row, &step.any);
            let first = seen.start % TILE;
            let seen = first..first + seen.len();
            let queries = row * heads..(row + 1) * heads;
            let acc = &mut acc[queries.start * n..queries.end * n];
            let (weights, softmax) = (&mut weights[queries.clone()], &mut softmax[queries]);
            self.isa.run(Update { n, scale: self.job.attention.scale, seen, softmax, weights, acc });
        }
    }

    fn mix<V: Stored>(&self, step: &Step, scratch: &mut Scratch) {
        let (queries, stride) = (self.queries(step), self.acc());
        let values = &mut [[].as_slice(); TILE];
        let values = self.gather::<V>(Part::Values, step, values);
        let (blocks, offsets) = self.gather_scales(Part::Values, step, &mut scratch.scales);
        let acc = &mut scratch.acc[queries.start * stride..queries.end * stride];
        let mut weights = &scratch.weights[queries.clone()];
        if !offsets.is_empty() {
            self.isa.run(MixOffsets { weights, offsets, stride, acc });
        }
        if let Some(scales) = blocks.scales {
            scratch
                .scaled
                .resize((weights.len() * scales.len()).max(scratch.scaled.len()), Weights::default());
            let out = &mut scratch.scaled[..weights.len() * scales.len()];
            self.isa.run(ScaleWeights { weights, scales, out });
            weights = out;
        }
        if queries.len() >= WIDEN_FROM && V::WIDENING != Widening::None {
            let slots = &mut [[].as_slice(); TILE];
            let values = self.widen(values, &mut scratch.wide, slots);
            self.mix_values(step, weights, values, blocks.groups, acc);
        } else {
            self.mix_values(step, weights, values, blocks.groups, acc);
        }
    }

    /// Adds the weighted values of the positions that each row sees to its accumulators, in ascending order. What
    /// a row does not see is not multiplied by zero but left out: it may be infinite.
    fn mix_values<V: Stored>(
        &self,
        step: &Step,
        weights: &[Weights],
        values: &Vectors<V>,
        groups: usize,
        acc: &mut [Chunk],
    ) {
        let (n, stride) = (self.groups(), self.acc());
        let n_blocks = n / groups;
        let mix = |positions: Range<usize>, queries: Range<usize>, acc: &mut [Chunk]| {
            if positions.is_empty() {
                return;
            }
            let at = positions.start % TILE;
            let values = &values[positions.start - step.any.start..positions.end - step.any.start];
            let acc = &mut acc[queries.start * stride..queries.end * stride];
            let weights = &weights[queries.start * n_blocks..queries.end * n_blocks];
            self.isa.run(Mix { n, groups, stride, weights, at, values, acc });
        };
        let rows = |index: usize| index * self.heads()..(index + 1) * self.heads();
        let seen = |index: usize| self.seen(step.rows.start + index, &step.any);
        for index in 0..step.rows.len() {
            mix(seen(index).start..step.all.start, rows(index), acc);
        }
        mix(step.all.clone(), 0..step.rows.len() * self.heads(), acc);
        for index in 0..step.rows.len() {
            mix(step.all.end..seen(index).end, rows(index), acc);
        }
    }

    /// Calls `visit(first position, cell of it, number)` for runs of a step's positions in consecutive cells of one
    /// block; they are the same for all rows of the step.
    fn runs(&self, step: &Step, mut visit: impl FnMut(usize, usize, usize)) {
        let row = self.tile.first + step.rows.start;
        let (group, shared) = (self.job.group, self.job.group.views[row].shared as usize);
        let block_len = self.job.cache.spec().block_len;
        let mut position = step.any.start;
        while position < step.any.end {
            // Positions of one block lie in consecutive cells, those of a tail anywhere.
            let run = if position < shared {
                (block_len - position % block_len).min(step.any.end.min(shared) - position)
            } else {
                1
            };
            visit(position, group.cell(row, position, block_len), run);
            position += run;
        }
    }

    /// The vectors of a step's positions.
    fn gather<'v, 'o, T: Stored>(
        &'v self,
        part: Part,
        step: &Step,
        out: &'o mut [&'v [T]; TILE],
    ) -> &'o Vectors<'v, T> {
        let (n, layer) = (self.groups(), self.job.attention.layer);
        let block_len = self.job.cache.spec().block_len;
        let mut filled = 0;
        self.runs(step, |_, cell, run| {
            let vectors = self.job.cache.vectors::<T>(part, layer, self.kv_head, cell / block_len);
            let first = cell % block_len * n;
            for vector in vectors[first..first + run * n].chunks_exact(n) {
                out[filled] = vector;
                filled += 1;
            }
        });
        &out[..filled]
    }

    /// The scales and the offsets of a step's positions, at their places in the tile. Places of other positions hold
    /// numbers without meaning.
    fn gather_scales<'o>(
        &self,
        part: Part,
        step: &Step,
        out: &'o mut Vec<Weights>,
    ) -> (Blocks<'o>, &'o [Weights]) {
        let cache = self.job.cache;
        let groups = cache.block_chunks(part) * LANES / GROUP;
        let count = cache.scale_count(part);
        if count == 0 {
            return (Blocks { groups, scales: None }, &[]);
        }
        out.resize(count.max(out.len()), Weights::default());
        let block_len = cache.spec().block_len;
        self.runs(step, |position, cell, run| {
            for (index, out) in out[..count].iter_mut().enumerate() {
                let scales =
                    cache.scales(part, self.job.attention.layer, self.kv_head, cell / block_len, index);
                out.write(position % TILE, &scales[cell % block_len..][..run]);
            }
        });
        let (scales, offsets) = out[..count].split_at(self.groups() / groups);
        (Blocks { groups, scales: Some(scales) }, offsets)
    }

    /// Widens `vectors` into `storage`.
    fn widen<'w, 'o, T: Stored>(
        &self,
        vectors: &Vectors<T>,
        storage: &'w mut Vec<Chunk>,
        out: &'o mut [&'w [F32]; TILE],
    ) -> &'o Vectors<'w, F32> {
        storage.resize(TILE * self.n(), [0.0; LANES]);
        self.isa.run(Widen { vectors, out: storage });
        for (out, vector) in out.iter_mut().zip(storage.chunks_exact(self.n())) {
            *out = bytemuck::cast_slice(vector);
        }
        &out[..vectors.len()]
    }

    /// Merges the span in the scratch into the totals of the queries that see it.
    fn merge(&self, span: usize, scratch: &mut Scratch) {
        let positions = span * SPAN..(span + 1) * SPAN;
        for q in 0..self.n_queries() {
            if self.seen(q / self.heads(), &positions).is_empty() {
                continue;
            }
            let chunks = q * self.acc()..(q + 1) * self.acc();
            let (total, acc) = (&mut scratch.totals[q], &mut scratch.total_acc[chunks.clone()]);
            let (part, part_acc) = (scratch.softmax[q].total(), &scratch.acc[chunks]);
            self.isa.run(MergeSpan { total, acc, part, part_acc });
        }
    }

    fn finish(&self, scratch: &Scratch, out: &Disjoint<f32>) {
        for q in 0..self.n_queries() {
            let (row, head) = self.row_and_head(q);
            // SAFETY: this item alone writes these heads of these rows.
            let out =
                unsafe { out.range(self.job.output_offset(row, head), self.job.attention.layout.head_dim) };
            let acc = &scratch.total_acc[q * self.acc()..(q + 1) * self.acc()];
            let form = self.job.value_form();
            self.isa.run(Finish { form, total: scratch.totals[q], acc, out });
        }
    }

    fn write_partials(&self, scratch: &Scratch, out: &mut [Chunk]) {
        let n = self.acc();
        for (q, out) in out.chunks_exact_mut(n + 1).enumerate() {
            let part = scratch.softmax[q].total();
            (out[0][0], out[0][1]) = (part.max, part.sum);
            out[1..].copy_from_slice(&scratch.acc[q * n..(q + 1) * n]);
        }
    }
}

/// Rows of the tile over positions inside one tile of positions.
struct Step {
    rows: Range<usize>,
    /// What the rows see between them.
    any: Range<usize>,
    /// What each of them sees; not empty.
    all: Range<usize>,
}

/// The sum of some chunks.
struct Sum<'a>(&'a [Chunk]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut sum = s.splat(0.0);
        for x in self.0 {
            sum = s.add(sum, s.load(x));
        }
        s.sum(sum)
    }
}
