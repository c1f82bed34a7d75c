//! Expert choice, and grouping of the choices by expert.

use crate::math;
use crate::simd::{Kernel, LANES, Simd};

/// Chooses the experts of each row of scores; see [`Backend::route`](lapidary_backend::Backend::route).
pub(crate) struct Route<'a> {
    /// `[rows, n_experts]`.
    pub(crate) scores: &'a [f32],
    pub(crate) n_experts: usize,
    pub(crate) expert_scale: Option<&'a [f32]>,
    /// `[rows, top_k]`.
    pub(crate) experts: &'a mut [u32],
    /// `[rows, top_k]`.
    pub(crate) weights: &'a mut [f32],
    pub(crate) top_k: usize,
    /// `[n_experts]`, scratch.
    pub(crate) exps: &'a mut [f32],
}

impl Kernel for Route<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let choices =
            self.experts.chunks_exact_mut(self.top_k).zip(self.weights.chunks_exact_mut(self.top_k));
        for (scores, (experts, weights)) in self.scores.chunks_exact(self.n_experts).zip(choices) {
            let total = exponentials(s, scores, self.exps);
            choose(self.exps, experts, weights);
            for weight in &mut *weights {
                *weight /= total;
            }
            // The floor under the sum is what the reference implementations divide by.
            let norm = weights.iter().sum::<f32>().max(1.0 / 16384.0);
            for (weight, &expert) in weights.iter_mut().zip(&*experts) {
                *weight = *weight / norm * self.expert_scale.map_or(1.0, |scale| scale[expert as usize]);
            }
        }
    }
}

/// `exps = exp(scores - max)`; returns their sum in sixteen partial sums, folded in halves.
#[inline(always)]
fn exponentials<S: Simd>(s: S, scores: &[f32], exps: &mut [f32]) -> f32 {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for at in (0..scores.len()).step_by(LANES) {
        let x = s.sub(s.load_at(scores, at), s.splat(max));
        s.store_at(math::exp(s, x), exps, at);
    }
    let mut sums = s.splat(0.0);
    for at in (0..scores.len()).step_by(LANES) {
        sums = s.add(sums, s.load_at(exps, at));
    }
    s.sum(sums)
}

/// The largest of `exps` in descending order, the lower index first among equals; NaN counts as smaller than all.
fn choose(exps: &[f32], experts: &mut [u32], values: &mut [f32]) {
    let mut n = 0;
    for (expert, &value) in exps.iter().enumerate() {
        let ahead = |other: f32| other >= value || value.is_nan();
        let mut at = n;
        while at > 0 && !ahead(values[at - 1]) {
            at -= 1;
        }
        if at == experts.len() {
            continue;
        }
        n = (n + 1).min(experts.len());
        experts.copy_within(at..n - 1, at + 1);
        values.copy_within(at..n - 1, at + 1);
        (experts[at], values[at]) = (expert as u32, value);
    }
}

/// The choices of a batch grouped by expert, in the order of the choices within each.
#[derive(Debug, Default)]
pub(crate) struct ByExpert {
    /// `(input row, output row)` of every choice, one expert after the other.
    pairs: Vec<(u32, u32)>,
    /// Experts that were chosen, ascending, each with the end of its pairs.
    ends: Vec<(u32, usize)>,
}

impl ByExpert {
    /// Groups `experts`; choice `c` reads the input row `input_row(c)` and writes the output row `c`.
    pub(crate) fn group(&mut self, experts: &[u32], input_row: impl Fn(usize) -> usize) {
        let mut order: Vec<(u32, u32)> = experts.iter().copied().zip(0..).collect();
        order.sort_unstable();
        self.pairs.clear();
        self.ends.clear();
        for (expert, choice) in order {
            self.pairs.push((input_row(choice as usize) as u32, choice));
            match self.ends.last_mut() {
                Some((last, end)) if *last == expert => *end += 1,
                _ => self.ends.push((expert, self.pairs.len())),
            }
        }
    }

    /// Each chosen expert with its pairs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &[(u32, u32)])> {
        let begins = std::iter::once(0).chain(self.ends.iter().map(|&(_, end)| end));
        begins.zip(&self.ends).map(|(begin, &(expert, end))| (expert, &self.pairs[begin..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_descend_and_ties_go_to_the_lower_id() {
        let nan = f32::NAN;
        let (mut experts, mut values) = ([0; 4], [0.0; 4]);
        choose(&[nan, 1.0, 3.0, 1.0, 3.0, 0.5, 1.0], &mut experts, &mut values);
        assert_eq!(experts, [2, 4, 1, 3]);
        assert_eq!(values, [3.0, 3.0, 1.0, 1.0]);
        choose(&[nan, nan, nan, 0.0], &mut experts, &mut values);
        assert_eq!(experts, [3, 0, 1, 2]);
    }

    #[test]
    fn choices_are_grouped_by_expert() {
        let mut groups = ByExpert::default();
        groups.group(&[5, 2, 2, 9, 5, 2], |choice| choice / 2);
        let found: Vec<(u32, Vec<(u32, u32)>)> =
            groups.iter().map(|(e, pairs)| (e, pairs.to_vec())).collect();
        let expected = vec![(2, vec![(0, 1), (1, 2), (2, 5)]), (5, vec![(0, 0), (2, 4)]), (9, vec![(1, 3)])];
        assert_eq!(found, expected);
        groups.group(&[], |choice| choice);
        assert_eq!(groups.iter().count(), 0);
    }
}
