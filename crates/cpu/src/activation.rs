//! Gated activation, softcap and weighted sums.

use crate::math;
use crate::simd::{Kernel, LANES, Simd};

/// `out = gelu_tanh(gate) * up` for one row.
pub(crate) struct Gated<'a> {
    pub(crate) gate: &'a [f32],
    pub(crate) up: &'a [f32],
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for at in (0..self.out.len()).step_by(LANES) {
            let gate = math::gelu_tanh(s, s.load_at(self.gate, at));
            s.store_at(s.mul(gate, s.load_at(self.up, at)), self.out, at);
        }
    }
}

/// `x = cap * tanh(x / cap)`.
pub(crate) struct Softcap<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) cap: f32,
}

impl Kernel for Softcap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let cap = s.splat(self.cap);
        for at in (0..self.x.len()).step_by(LANES) {
            let x = s.div(s.load_at(self.x, at), cap);
            s.store_at(s.mul(cap, math::tanh(s, x)), self.x, at);
        }
    }
}

/// `out = sum_j weights[j] * rows[j]` in the order of `j`, for rows of `out.len()` elements one after the other.
pub(crate) struct WeightedSum<'a> {
    pub(crate) weights: &'a [f32],
    pub(crate) rows: &'a [f32],
    pub(crate) out: &'a mut [f32],
}

impl Kernel for WeightedSum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let cols = self.out.len();
        for at in (0..cols).step_by(LANES) {
            let mut sum = s.splat(0.0);
            for (j, &weight) in self.weights.iter().enumerate() {
                let row = &self.rows[j * cols..(j + 1) * cols];
                sum = s.mul_add(s.splat(weight), s.load_at(row, at), sum);
            }
            s.store_at(sum, self.out, at);
        }
    }
}
