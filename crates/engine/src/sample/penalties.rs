//! Penalties on recent tokens.

use std::collections::{HashMap, VecDeque};

use super::SamplerConfig;

/// Counts the last tokens and lowers their logits.
#[derive(Clone, Debug)]
pub struct Penalties {
    repeat: f32,
    presence: f32,
    frequency: f32,
    window: usize,
    recent: VecDeque<u32>,
    counts: HashMap<u32, u32>,
}

impl Penalties {
    pub fn new(config: &SamplerConfig) -> Self {
        Self {
            repeat: config.repeat_penalty,
            presence: config.presence_penalty,
            frequency: config.frequency_penalty,
            window: config.penalty_window,
            recent: VecDeque::new(),
            counts: HashMap::new(),
        }
    }

    /// Whether there is anything to apply.
    pub fn is_active(&self) -> bool {
        self.window > 0 && (self.repeat != 1.0 || self.presence != 0.0 || self.frequency != 0.0)
    }

    pub fn accept(&mut self, token: u32) {
        if !self.is_active() {
            return;
        }
        self.recent.push_back(token);
        *self.counts.entry(token).or_insert(0) += 1;
        if self.recent.len() > self.window
            && let Some(old) = self.recent.pop_front()
            && let Some(count) = self.counts.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&old);
            }
        }
    }

    /// How many tokens are lowered; `None` when the settings may raise some.
    pub fn lowered(&self) -> Option<usize> {
        let lowers = self.repeat >= 1.0 && self.presence >= 0.0 && self.frequency >= 0.0;
        (lowers || !self.is_active()).then_some(self.counts.len())
    }

    /// Lowers the logits of recent tokens; `place` says where a token's logit is, if anywhere.
    pub fn apply(&self, logits: &mut [f32], place: impl Fn(u32) -> Option<usize>) {
        for (&token, &count) in &self.counts {
            if let Some(logit) = place(token).and_then(|at| logits.get_mut(at)) {
                *logit = if *logit > 0.0 { *logit / self.repeat } else { *logit * self.repeat };
                *logit -= self.presence + self.frequency * count as f32;
            }
        }
    }
}
