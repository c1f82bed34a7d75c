//! RMS normalisation, per-head norm with rotation, residual addition.

use crate::{HeadLayout, ValueSource};

/// `1 / sqrt(mean(x^2) + eps)`, summed in `f64`.
pub fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / x.len() as f64;
    (1.0 / (mean + f64::from(eps)).sqrt()) as f32
}

/// `out = x / sqrt(mean(x^2) + eps) * weight` for one row.
pub fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    let factor = inverse_rms(x, eps);
    for i in 0..x.len() {
        out[i] = x[i] * factor * weight.map_or(1.0, |w| w[i]);
    }
}

/// `x = (x + norm(y)) * scale` for one row; `scale` holds one value or one a column.
pub fn add_norm(x: &mut [f32], y: &[f32], weight: Option<&[f32]>, eps: f32, scale: Option<&[f32]>) {
    let factor = inverse_rms(y, eps);
    for i in 0..x.len() {
        let sum = x[i] + y[i] * factor * weight.map_or(1.0, |w| w[i]);
        x[i] = sum * scale.map_or(1.0, |s| if s.len() == 1 { s[0] } else { s[i] });
    }
}

/// Rotates the pairs `(i, i + half)` of one head by the angle whose cosine and sine are `table[i]` and
/// `table[half + i]` (NEOX order).
pub fn rotate(head: &mut [f32], table: &[f32]) {
    let half = head.len() / 2;
    for i in 0..half {
        let (a, b) = (head[i], head[half + i]);
        let (cos, sin) = (table[i], table[half + i]);
        head[i] = a * cos - b * sin;
        head[half + i] = b * cos + a * sin;
    }
}

/// Norms and rotation of all heads of one row; see [`Backend::head_norm_rope`](crate::Backend::head_norm_rope).
pub fn head_norm_rope(
    qkv: &mut [f32],
    layout: HeadLayout,
    q_norm: &[f32],
    kv: Option<(&[f32], ValueSource)>,
    table: &[f32],
    eps: f32,
) {
    let dim = layout.head_dim;
    let (queries, rest) = qkv.split_at_mut(layout.k_offset());
    for head in queries.chunks_exact_mut(dim) {
        norm_in_place(head, Some(q_norm), eps);
        rotate(head, table);
    }
    let Some((k_norm, source)) = kv else { return };
    let (keys, values) = rest.split_at_mut(layout.kv_heads * dim);
    for (key, value) in keys.chunks_exact_mut(dim).zip(values.chunks_exact_mut(dim)) {
        match source {
            ValueSource::Projected => {}
            ValueSource::ProjectedNormed => norm_in_place(value, None, eps),
            ValueSource::KeyNormed => rms_norm(key, None, eps, value),
        }
        norm_in_place(key, Some(k_norm), eps);
        rotate(key, table);
    }
}

fn norm_in_place(head: &mut [f32], weight: Option<&[f32]>, eps: f32) {
    let factor = inverse_rms(head, eps);
    for (i, value) in head.iter_mut().enumerate() {
        *value *= factor * weight.map_or(1.0, |w| w[i]);
    }
}
