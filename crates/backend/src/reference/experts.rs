//! Expert choice of one row.

/// Chooses the `top_k` most probable experts and their weights; see [`Backend::route`](crate::Backend::route).
///
/// The sum of the chosen probabilities is kept at or above 2^-14 before dividing, as the reference
/// implementations do.
pub fn route(scores: &[f32], top_k: usize, expert_scale: Option<&[f32]>) -> Vec<(u32, f32)> {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
    let total: f32 = exps.iter().sum();
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    // A stable sort keeps the lower id first among equals; NaN scores sort last.
    order.sort_by(|&a, &b| {
        let (a, b) = (exps[a as usize], exps[b as usize]);
        b.partial_cmp(&a).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
    });
    order.truncate(top_k);
    let chosen: f32 = order.iter().map(|&e| exps[e as usize] / total).sum();
    let norm = chosen.max(1.0 / 16384.0);
    order
        .into_iter()
        .map(|e| (e, exps[e as usize] / total / norm * expert_scale.map_or(1.0, |s| s[e as usize])))
        .collect()
}
