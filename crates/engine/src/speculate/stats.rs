//! What speculation did.

use std::time::Duration;

/// Counts of one sequence's speculation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpeculationStats {
    /// Forward passes.
    pub passes: usize,
    /// Tokens that came out of them.
    pub tokens: usize,
    /// Passes that checked a draft.
    pub drafted_passes: usize,
    /// Drafted tokens that were checked.
    pub drafted: usize,
    /// Drafted tokens that were the model's choice.
    pub accepted: usize,
    /// For each depth of a draft: passes in which all tokens before it were accepted and one or more stood there.
    pub reached: Vec<usize>,
    /// For each depth: passes in which one of them was accepted.
    pub accepted_at: Vec<usize>,
    /// How often the drafter was switched off for losing time.
    pub switched_off: usize,
    /// Time that drafting took.
    pub draft_time: Duration,
    /// Time of drafting and passes together.
    pub time: Duration,
    /// Median time of a pass with one row in this run, if there was one.
    pub plain_pass: Option<Duration>,
}

impl SpeculationStats {
    /// Tokens a pass.
    pub fn tokens_per_pass(&self) -> f64 {
        if self.passes == 0 { 0.0 } else { self.tokens as f64 / self.passes as f64 }
    }

    /// The share of drafted tokens that were accepted.
    pub fn acceptance(&self) -> f64 {
        if self.drafted == 0 { 0.0 } else { self.accepted as f64 / self.drafted as f64 }
    }

    /// For each depth, the share of drafts accepted among those that got there.
    pub fn acceptance_by_depth(&self) -> Vec<f64> {
        let share = |(&hit, &all): (&usize, &usize)| hit as f64 / all.max(1) as f64;
        self.accepted_at.iter().zip(&self.reached).map(share).collect()
    }

    /// How many times faster than one pass a token this was, estimated from this run's own passes with one row.
    pub fn estimated_speedup(&self) -> Option<f64> {
        let plain = self.plain_pass?.as_secs_f64() * self.tokens as f64;
        (self.time > Duration::ZERO).then(|| plain / self.time.as_secs_f64())
    }

    /// Notes that a draft token at `depth` could be accepted, and whether it was.
    pub(super) fn reach(&mut self, depth: usize, accepted: bool) {
        if self.reached.len() <= depth {
            self.reached.resize(depth + 1, 0);
            self.accepted_at.resize(depth + 1, 0);
        }
        self.reached[depth] += 1;
        self.accepted_at[depth] += usize::from(accepted);
        self.accepted += usize::from(accepted);
    }
}
