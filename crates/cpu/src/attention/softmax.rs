//! The online softmax of a span.

use std::ops::Range;

use crate::math::exp;
use crate::simd::{Chunk, Kernel, LANES, Simd};

use super::TILE;
use super::merge::Total;
use super::product::Weights;

/// The running softmax of a query over a span: weights are relative to `max`.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    max: f32,
    /// One partial sum for each position mod 16.
    sums: Chunk,
}

impl Softmax {
    /// No positions.
    pub(super) const EMPTY: Self = Self { max: f32::NEG_INFINITY, sums: [0.0; LANES] };

    /// Greatest score and sum of weights, the partial sums folded in halves.
    pub(super) fn total(&self) -> Total {
        let mut sums = self.sums;
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                sums[i] += sums[i + width];
            }
        }
        Total { max: self.max, sum: sums[0] }
    }
}

/// Turns the products of a tile into weights for each query of a row, and rescales what was accumulated before to
/// the new maximum.
pub(super) struct Update<'a> {
    /// Chunks of an accumulator.
    pub(super) n: usize,
    /// Factor on the products.
    pub(super) scale: f32,
    /// Positions of the tile that the row sees.
    pub(super) seen: Range<usize>,
    pub(super) softmax: &'a mut [Softmax],
    pub(super) weights: &'a mut [Weights],
    pub(super) acc: &'a mut [Chunk],
}

impl Kernel for Update<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let queries = self.softmax.iter_mut().zip(self.weights).zip(self.acc.chunks_exact_mut(self.n));
        for ((softmax, weights), acc) in queries {
            let [low, high] = scores(s, weights, self.scale, &self.seen);
            let tile_max = s.max_lane(s.max(low, high));
            let max = if softmax.max > tile_max { softmax.max } else { tile_max };
            let mut sums = s.load(&softmax.sums);
            if max != softmax.max {
                let kept = exp(s, s.splat(softmax.max - max));
                sums = s.mul(sums, kept);
                for acc in acc {
                    s.store(s.mul(s.load(acc), kept), acc);
                }
                softmax.max = max;
            }
            let max = s.splat(max);
            let (low, high) = (exp(s, s.sub(low, max)), exp(s, s.sub(high, max)));
            s.store(s.add(s.add(sums, low), high), &mut softmax.sums);
            s.store(low, &mut weights.0[0]);
            s.store(high, &mut weights.0[1]);
        }
    }
}

/// The scaled products; those of positions that are not seen are negative infinity.
#[inline(always)]
fn scores<S: Simd>(s: S, weights: &mut Weights, scale: f32, seen: &Range<usize>) -> [S::F; 2] {
    let scale = s.splat(scale);
    let scaled = [s.mul(s.load(&weights.0[0]), scale), s.mul(s.load(&weights.0[1]), scale)];
    if *seen == (0..TILE) {
        return scaled;
    }
    s.store(scaled[0], &mut weights.0[0]);
    s.store(scaled[1], &mut weights.0[1]);
    let flat = weights.0.as_flattened_mut();
    flat[..seen.start].fill(f32::NEG_INFINITY);
    flat[seen.end..TILE].fill(f32::NEG_INFINITY);
    [s.load(&weights.0[0]), s.load(&weights.0[1])]
}
