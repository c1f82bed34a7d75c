//! RMS normalisation and residual addition, one row at a time.

use crate::math::inverse_rms;
use crate::simd::{Kernel, LANES, Simd};

/// `out = x / sqrt(mean(x^2) + eps) * weight` for each row of `cols`.
pub(crate) struct RmsNorm<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) cols: usize,
    pub(crate) weight: Option<&'a [f32]>,
    pub(crate) eps: f32,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.x.chunks_exact(self.cols).zip(self.out.chunks_exact_mut(self.cols));
        for (x, out) in rows {
            let factor = s.splat(inverse_rms(s, x, self.eps));
            for at in (0..self.cols).step_by(LANES) {
                let v = s.mul(s.load_at(x, at), factor);
                let v = match self.weight {
                    Some(weight) => s.mul(v, s.load_at(weight, at)),
                    None => v,
                };
                s.store_at(v, out, at);
            }
        }
    }
}

/// `x = (x + norm(y)) * scale` for each row of `cols`.
pub(crate) struct AddNorm<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) y: &'a [f32],
    pub(crate) cols: usize,
    pub(crate) weight: Option<&'a [f32]>,
    pub(crate) eps: f32,
    /// One value, or one a column; absent means 1.
    pub(crate) scale: Option<&'a [f32]>,
}

impl Kernel for AddNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.x.chunks_exact_mut(self.cols).zip(self.y.chunks_exact(self.cols));
        for (x, y) in rows {
            let factor = s.splat(inverse_rms(s, y, self.eps));
            for at in (0..self.cols).step_by(LANES) {
                let v = s.mul(s.load_at(y, at), factor);
                let v = match self.weight {
                    Some(weight) => s.mul(v, s.load_at(weight, at)),
                    None => v,
                };
                let sum = s.add(s.load_at(x, at), v);
                let sum = match self.scale {
                    None => sum,
                    Some([scale]) => s.mul(sum, s.splat(*scale)),
                    Some(scale) => s.mul(sum, s.load_at(scale, at)),
                };
                s.store_at(sum, x, at);
            }
        }
    }
}
