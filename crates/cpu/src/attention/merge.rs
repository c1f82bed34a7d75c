//! Merging the results of spans.

use crate::kv::MAX_BLOCKS;
use crate::kv::rotate::unrotate;
use crate::math::exp;
use crate::simd::{Chunk, Kernel, LANES, Simd};

use super::ValueForm;
use super::plan::QueryPartials;

/// Chunks of the longest head.
const MAX_CHUNKS: usize = 512 / LANES;

/// The softmax of some spans: weights are relative to `max`, and so is the accumulator that belongs to it.
#[derive(Clone, Copy)]
pub(super) struct Total {
    pub(super) max: f32,
    pub(super) sum: f32,
}

impl Total {
    /// Nothing merged.
    pub(super) const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Merges the next span, whose accumulator is `part_acc`, into this total and its accumulator.
    #[inline(always)]
    fn merge<S: Simd>(&mut self, s: S, acc: &mut [Chunk], part: Self, part_acc: &[Chunk]) {
        let max = if self.max > part.max { self.max } else { part.max };
        let (kept, added) = (exp(s, s.splat(self.max - max)), exp(s, s.splat(part.max - max)));
        let sum = s.mul_add(s.splat(self.sum), kept, s.mul(s.splat(part.sum), added));
        let mut lanes = [0.0; LANES];
        s.store(sum, &mut lanes);
        *self = Self { max, sum: lanes[0] };
        for (acc, part) in acc.iter_mut().zip(part_acc) {
            let v = s.mul_add(s.load(acc), kept, s.mul(s.load(part), added));
            s.store(v, acc);
        }
    }

    /// Writes the accumulator divided by the sum of weights, its offsets added and its rotation undone.
    #[inline(always)]
    fn finish<S: Simd>(self, s: S, form: &ValueForm, acc: &[Chunk], out: &mut [f32]) {
        let inverse = s.splat(1.0 / self.sum);
        if !form.rotated {
            for i in 0..out.len().div_ceil(LANES) {
                s.store_at(s.mul(s.load(&acc[i]), inverse), out, LANES * i);
            }
            return;
        }
        // Rotated heads are whole chunks.
        let mut vector = [[0.0; LANES]; MAX_CHUNKS];
        let vector = &mut vector[..out.len() / LANES];
        let offsets = &acc[form.chunks..];
        for (i, (v, acc)) in vector.iter_mut().zip(acc).enumerate() {
            let mut x = s.load(acc);
            if let Some(offset) = offsets.get(i / form.block_chunks) {
                x = s.add(x, s.splat(s.sum(s.load(offset))));
            }
            s.store(s.mul(x, inverse), v);
        }
        unrotate(s, vector);
        for (i, v) in vector.iter().enumerate() {
            s.store_at(s.load(v), out, LANES * i);
        }
    }
}

/// Merges a span into the total of the spans before it.
pub(super) struct MergeSpan<'a> {
    pub(super) total: &'a mut Total,
    pub(super) acc: &'a mut [Chunk],
    pub(super) part: Total,
    pub(super) part_acc: &'a [Chunk],
}

impl Kernel for MergeSpan<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.total.merge(s, self.acc, self.part, self.part_acc);
    }
}

/// Writes a query's output.
pub(super) struct Finish<'a> {
    pub(super) form: ValueForm,
    pub(super) total: Total,
    pub(super) acc: &'a [Chunk],
    pub(super) out: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.total.finish(s, &self.form, self.acc, self.out);
    }
}

/// Merges all spans of one query into its output.
pub(super) struct MergeAll<'a> {
    pub(super) form: ValueForm,
    pub(super) partials: QueryPartials<'a>,
    pub(super) out: &'a mut [f32],
}

impl Kernel for MergeAll<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.form.acc_chunks();
        let mut acc = [[0.0; LANES]; MAX_CHUNKS + MAX_BLOCKS];
        let acc = &mut acc[..width];
        let mut total = Total::EMPTY;
        for i in 0..self.partials.n_spans {
            let part = &self.partials.chunks[i * self.partials.stride..][..width + 1];
            total.merge(s, acc, Total { max: part[0][0], sum: part[0][1] }, &part[1..]);
        }
        total.finish(s, &self.form, acc, self.out);
    }
}
