//! Softmax attention of one query head.

/// Attention of `query` over the cached vectors: `out = sum_p softmax_p(scale * query . key_p) value_p`.
///
/// `keys` and `values` yield the visible positions in ascending order, each `head_dim` elements; there is at
/// least one.
pub fn attend<'a>(
    query: &[f32],
    keys: impl Iterator<Item = &'a [f32]>,
    values: impl Iterator<Item = &'a [f32]>,
    scale: f32,
    out: &mut [f32],
) {
    let scores: Vec<f64> = keys.map(|key| f64::from(scale) * dot(query, key)).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
    let mut mixed = vec![0.0f64; out.len()];
    for (score, value) in scores.iter().zip(values) {
        let weight = (score - max).exp() / sum;
        for (mixed, &v) in mixed.iter_mut().zip(value) {
            *mixed += weight * f64::from(v);
        }
    }
    for (out, mixed) in out.iter_mut().zip(mixed) {
        *out = mixed as f32;
    }
}

/// Dot product in `f64`.
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}
