//! Candidate tokens and the filters over them.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Tokens that may still be chosen, with their logits, best first.
pub struct Candidates(Vec<(u32, f32)>);

/// Orders by logit, the lower id first among equals; the heap's top is then the worst of the best.
#[derive(PartialEq)]
struct Worst(f32, u32);

impl Eq for Worst {}

impl PartialOrd for Worst {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Worst {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.total_cmp(&self.0).then(self.1.cmp(&other.1))
    }
}

impl Candidates {
    /// The `k` tokens of largest finite logit; all of them when `k` is 0.
    pub fn top_k(logits: &[f32], k: usize) -> Self {
        let finite = logits.iter().enumerate().filter(|(_, l)| l.is_finite()).map(|(i, &l)| (i as u32, l));
        if k == 0 || k >= logits.len() {
            let mut all: Vec<_> = finite.collect();
            all.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            return Self(all);
        }
        let mut heap: BinaryHeap<Worst> = BinaryHeap::with_capacity(k + 1);
        let mut threshold = f32::NEG_INFINITY;
        for (id, logit) in finite {
            if heap.len() < k {
                heap.push(Worst(logit, id));
            } else if logit > threshold {
                heap.pop();
                heap.push(Worst(logit, id));
            } else {
                continue;
            }
            if heap.len() == k {
                threshold = heap.peek().map_or(threshold, |w| w.0);
            }
        }
        Self(heap.into_sorted_vec().into_iter().map(|w| (w.1, w.0)).collect())
    }

    /// Tokens and logits, best first.
    pub fn into_sorted(self) -> Vec<(u32, f32)> {
        self.0
    }

    /// Keeps the best tokens until their probabilities sum to `p`.
    pub fn top_p(&mut self, p: f32) {
        if p >= 1.0 {
            return;
        }
        let weights = self.weights(1.0);
        let target = f64::from(p) * weights.iter().sum::<f64>();
        let mut sum = 0.0;
        let keep = weights.iter().position(|w| {
            sum += w;
            sum >= target
        });
        self.0.truncate(keep.map_or(self.0.len(), |i| i + 1));
    }

    /// Drops tokens less probable than `p` times the best one.
    pub fn min_p(&mut self, p: f32) {
        if p <= 0.0 || self.0.is_empty() {
            return;
        }
        let threshold = self.0[0].1 + p.min(1.0).ln();
        self.0.retain(|&(_, logit)| logit >= threshold);
    }

    /// Draws a token at `temperature` by a number from `[0, 1)`.
    pub fn draw(&self, temperature: f32, uniform: f64) -> Option<u32> {
        let weights = self.weights(temperature);
        let mut left = uniform * weights.iter().sum::<f64>();
        for (&(id, _), weight) in self.0.iter().zip(&weights) {
            left -= weight;
            if left < 0.0 {
                return Some(id);
            }
        }
        self.0.last().map(|&(id, _)| id)
    }

    /// `exp((logit - best) / temperature)` of each candidate.
    fn weights(&self, temperature: f32) -> Vec<f64> {
        let best = self.0.first().map_or(0.0, |&(_, logit)| logit);
        self.0.iter().map(|&(_, logit)| (f64::from(logit - best) / f64::from(temperature)).exp()).collect()
    }
}
