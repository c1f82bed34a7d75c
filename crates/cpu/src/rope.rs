//! Rotary position embedding: tables, and per-head norm with rotation.

use lapidary_backend::{HeadLayout, ValueSource};

use crate::math::inverse_rms;
use crate::simd::{Kernel, LANES, Simd};

/// Cosines and sines of one position: see [`Backend::rope_table`](lapidary_backend::Backend::rope_table).
///
/// The angle is rounded to `f32`, as the models were trained; its cosine and sine are exact to the last bit or so.
pub(crate) fn table_row(position: u32, frequencies: &[f32], out: &mut [f32]) {
    let (cosines, sines) = out.split_at_mut(frequencies.len());
    for ((frequency, cos), sin) in frequencies.iter().zip(cosines).zip(sines) {
        let (s, c) = f64::from(position as f32 * frequency).sin_cos();
        (*cos, *sin) = (c as f32, s as f32);
    }
}

/// Norms and rotations of all heads of each row; see
/// [`Backend::head_norm_rope`](lapidary_backend::Backend::head_norm_rope).
pub(crate) struct HeadNorms<'a> {
    pub(crate) rows: &'a mut [f32],
    pub(crate) layout: HeadLayout,
    pub(crate) q_norm: &'a [f32],
    /// The key norm, and where values come from.
    pub(crate) kv: Option<(&'a [f32], ValueSource)>,
    /// `[rows, head_dim]`.
    pub(crate) tables: &'a [f32],
    pub(crate) eps: f32,
}

impl Kernel for HeadNorms<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (layout, dim, eps) = (self.layout, self.layout.head_dim, self.eps);
        let rows = self.rows.chunks_exact_mut(layout.stride()).zip(self.tables.chunks_exact(dim));
        for (row, table) in rows {
            let (queries, rest) = row.split_at_mut(layout.k_offset());
            for head in queries.chunks_exact_mut(dim) {
                norm_rotate(s, head, self.q_norm, table, eps);
            }
            let Some((k_norm, source)) = self.kv else { continue };
            let (keys, values) = rest.split_at_mut(layout.kv_heads * dim);
            for (key, value) in keys.chunks_exact_mut(dim).zip(values.chunks_exact_mut(dim)) {
                match source {
                    ValueSource::Projected => {}
                    ValueSource::ProjectedNormed => norm(s, value, eps),
                    ValueSource::KeyNormed => {
                        value.copy_from_slice(key);
                        norm(s, value, eps);
                    }
                }
                norm_rotate(s, key, k_norm, table, eps);
            }
        }
    }
}

/// `x = x / sqrt(mean(x^2) + eps)`.
#[inline(always)]
fn norm<S: Simd>(s: S, x: &mut [f32], eps: f32) {
    let factor = s.splat(inverse_rms(s, x, eps));
    for at in (0..x.len()).step_by(LANES) {
        s.store_at(s.mul(s.load_at(x, at), factor), x, at);
    }
}

/// Norm with weight, then rotation of the pairs `(i, i + dim/2)` by the table's angle `i`.
#[inline(always)]
fn norm_rotate<S: Simd>(s: S, head: &mut [f32], weight: &[f32], table: &[f32], eps: f32) {
    let factor = s.splat(inverse_rms(s, head, eps));
    let half = head.len() / 2;
    let (first, second) = head.split_at_mut(half);
    let (first_weight, second_weight) = weight[..2 * half].split_at(half);
    let (cosines, sines) = table[..2 * half].split_at(half);
    for at in (0..half).step_by(LANES) {
        let a = s.mul(s.load_at(first, at), s.mul(factor, s.load_at(first_weight, at)));
        let b = s.mul(s.load_at(second, at), s.mul(factor, s.load_at(second_weight, at)));
        let (cos, sin) = (s.load_at(cosines, at), s.load_at(sines, at));
        s.store_at(s.sub(s.mul(a, cos), s.mul(b, sin)), first, at);
        s.store_at(s.add(s.mul(b, cos), s.mul(a, sin)), second, at);
    }
}
