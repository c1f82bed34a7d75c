//! Merging the results of spans.

use crate::math::exp;
use crate::simd::{Chunk, Kernel, LANES, Simd};

use super::plan::QueryPartials;

/// Chunks of the longest head.
pub(crate) const MAX_CHUNKS: usize = 512 / LANES;

/// The softmax of the spans merged so far: weights are relative to `max`, and so is the accumulator that belongs
/// to it.
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
    pub(super) fn merge<S: Simd>(&mut self, s: S, acc: &mut [Chunk], part: Self, part_acc: &[Chunk]) {
        let max = if self.max > part.max { self.max } else { part.max };
        let (kept, added) = (exp(s, s.splat(self.max - max)), exp(s, s.splat(part.max - max)));
        let sum = s.mul_add(s.splat(self.sum), kept, s.mul(s.splat(part.sum), added));
        *self = Self { max, sum: lane0(s, sum) };
        for (acc, part) in acc.iter_mut().zip(part_acc) {
            let v = s.mul_add(s.load(acc), kept, s.mul(s.load(part), added));
            s.store(v, acc);
        }
    }

    /// Writes the accumulator divided by the sum of weights.
    #[inline(always)]
    pub(super) fn finish<S: Simd>(self, s: S, acc: &[Chunk], out: &mut [f32]) {
        let inverse = s.splat(1.0 / self.sum);
        for (i, acc) in acc.iter().enumerate() {
            s.store_at(s.mul(s.load(acc), inverse), out, LANES * i);
        }
    }
}

#[inline(always)]
fn lane0<S: Simd>(s: S, v: S::F) -> f32 {
    let mut chunk = [0.0; LANES];
    s.store(v, &mut chunk);
    chunk[0]
}

/// Merges the spans of one query into its output.
pub(super) struct Merge<'a> {
    pub(super) partials: QueryPartials<'a>,
    pub(super) out: &'a mut [f32],
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n_chunks = self.out.len().div_ceil(LANES);
        let mut acc = [[0.0; LANES]; MAX_CHUNKS];
        let acc = &mut acc[..n_chunks];
        let mut total = Total::EMPTY;
        for i in 0..self.partials.n_spans {
            let part = &self.partials.chunks[i * self.partials.stride..][..n_chunks + 1];
            total.merge(s, acc, Total { max: part[0][0], sum: part[0][1] }, &part[1..]);
        }
        total.finish(s, acc, self.out);
    }
}
