//! Choosing the next token from logits.
//!
//! The chain is the one that users of llama.cpp know, in its order: logit bias and penalties, top-k, top-p, min-p,
//! temperature. At temperature 0 the choice is the largest logit after bias and penalties. One random number is
//! drawn a token, so that a seed fixes the text whatever the batch.

mod chain;
mod penalties;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::batch::Want;
use crate::model::Logits;
use chain::Candidates;
use penalties::Penalties;

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Divides the logits; 0 means the most probable token.
    pub temperature: f32,
    /// Keep the `k` most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the most probable tokens until their probabilities sum to this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less probable than this fraction of the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Divides the logits of recent tokens that are positive, multiplies those that are negative; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted from the logits of recent tokens.
    pub presence_penalty: f32,
    /// Subtracted once for each occurrence among the recent tokens.
    pub frequency_penalty: f32,
    /// How many recent tokens the penalties look at.
    pub penalty_window: usize,
    /// Added to the logits of these tokens; negative infinity forbids one.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// No token can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no token can be chosen: the model gave no finite logit (damaged weights?), or the bias forbids every token"
)]
pub struct NoCandidate;

/// Chooses tokens one after the other.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    rng: ChaCha8Rng,
    penalties: Penalties,
    /// Logits under change, kept between calls.
    adjusted: Vec<f32>,
}

impl Sampler {
    /// A sampler at the beginning of its random numbers.
    pub fn new(config: SamplerConfig) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(config.seed);
        let penalties = Penalties::new(&config);
        Self { config, rng, penalties, adjusted: Vec::new() }
    }

    /// Tells the sampler of a token in the text: prompt tokens as well as chosen ones, for the penalties.
    pub fn accept(&mut self, token: u32) {
        self.penalties.accept(token);
    }

    /// Chooses a token. The caller then [accepts](Self::accept) what it emits.
    ///
    /// # Errors
    /// When no logit is finite.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, NoCandidate> {
        self.sample_from(Logits::All(logits))
    }

    /// As [`sample`](Self::sample), from all logits or from as many of the best as the sampler [needs](Self::need).
    ///
    /// # Errors
    /// When no logit is finite.
    pub fn sample_from(&mut self, logits: Logits) -> Result<u32, NoCandidate> {
        // Drawn even when greedy, so that the number of draws is the number of tokens.
        let uniform = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let (ids, values) = match logits {
            Logits::All(values) => (None, values),
            Logits::Best { ids, values } => (Some(ids), values),
        };
        let changes = self.penalties.is_active() || !self.config.logit_bias.is_empty();
        if changes {
            self.adjust(ids, values);
        }
        let values = if changes { &self.adjusted } else { values };
        // Tokens ascend in either form, so places stand for them also among equals.
        let place = if self.config.temperature <= 0.0 {
            argmax(values)
        } else {
            let mut candidates = Candidates::top_k(values, self.config.top_k);
            candidates.top_p(self.config.top_p);
            candidates.min_p(self.config.min_p);
            candidates.draw(self.config.temperature, uniform)
        };
        let place = place.ok_or(NoCandidate)?;
        Ok(ids.map_or(place, |ids| ids[place as usize]))
    }

    /// Which logits decide the next token: so many of the best, or all.
    pub fn need(&self) -> Want {
        let config = &self.config;
        let greedy = config.temperature <= 0.0;
        if !greedy && config.top_k == 0 {
            return Want::Logits;
        }
        // A token that is raised could come from anywhere; one that is lowered makes room for one more.
        let biases_lower = config.logit_bias.iter().all(|&(_, bias)| bias <= 0.0);
        match self.penalties.lowered() {
            Some(lowered) if biases_lower => {
                Want::Best(if greedy { 1 } else { config.top_k } + config.logit_bias.len() + lowered)
            }
            _ => Want::Logits,
        }
    }

    /// Applies bias and penalties to the logits of `ids`, absent for all tokens.
    fn adjust(&mut self, ids: Option<&[u32]>, values: &[f32]) {
        let place = |token: u32| match ids {
            Some(ids) => ids.binary_search(&token).ok(),
            None => Some(token as usize),
        };
        self.adjusted.clear();
        self.adjusted.extend_from_slice(values);
        for &(token, bias) in &self.config.logit_bias {
            if let Some(logit) = place(token).and_then(|at| self.adjusted.get_mut(at)) {
                *logit += bias;
            }
        }
        self.penalties.apply(&mut self.adjusted, place);
    }
}

/// Index of the largest finite logit, the lower index among equals.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (i, &logit) in logits.iter().enumerate() {
        if logit.is_finite() && best.is_none_or(|(_, max)| logit > max) {
            best = Some((i, logit));
        }
    }
    best.map(|(i, _)| i as u32)
}

/// The `k` tokens of largest logit, best first.
pub fn best(logits: &[f32], k: usize) -> Vec<u32> {
    Candidates::top_k(logits, k.max(1)).into_sorted().into_iter().take(k).map(|(id, _)| id).collect()
}

/// The `k` most probable tokens with their log-probabilities, best first.
pub fn top_logprobs(logits: &[f32], k: usize) -> Vec<(u32, f32)> {
    let log_sum = log_sum_exp(logits);
    let mut best = Candidates::top_k(logits, k.max(1)).into_sorted();
    best.truncate(k);
    best.into_iter().map(|(id, logit)| (id, (f64::from(logit) - log_sum) as f32)).collect()
}

/// `ln(sum(exp(logits)))`, in `f64`.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Eight partial sums keep the additions from waiting for each other.
    let mut sums = [0.0f64; 8];
    for chunk in logits.chunks(8) {
        for (sum, &logit) in sums.iter_mut().zip(chunk) {
            *sum += f64::from((logit - max).exp());
        }
    }
    f64::from(max) + sums.iter().sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits() -> Vec<f32> {
        (0..1000).map(|i| ((i * 7919) % 1000) as f32 / 100.0).collect()
    }

    fn draws(config: &SamplerConfig, logits: &[f32], n: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(config.clone());
        (0..n).map(|_| sampler.sample(logits).unwrap()).collect()
    }

    #[test]
    fn temperature_zero_takes_the_largest_and_the_first_of_equals() {
        let greedy = SamplerConfig { temperature: 0.0, ..Default::default() };
        assert_eq!(draws(&greedy, &[1.0, 3.0, f32::NAN, 3.0], 2), [1, 1]);
    }

    #[test]
    fn the_seed_fixes_the_draws() {
        let config = SamplerConfig { top_k: 0, top_p: 1.0, min_p: 0.0, ..Default::default() };
        assert_eq!(draws(&config, &logits(), 50), draws(&config, &logits(), 50));
        let other = SamplerConfig { seed: 1, ..config.clone() };
        assert_ne!(draws(&config, &logits(), 50), draws(&other, &logits(), 50));
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let config =
            SamplerConfig { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Default::default() };
        let logits = [0.1f32.ln(), 0.6f32.ln(), 0.3f32.ln()];
        let mut counts = [0.0; 3];
        draws(&config, &logits, 20_000).into_iter().for_each(|t| counts[t as usize] += 1.0 / 20_000.0);
        for (count, expected) in counts.into_iter().zip([0.1f64, 0.6, 0.3]) {
            assert!((count - expected).abs() < 0.015, "{counts:?}");
        }
    }

    #[test]
    fn filters_keep_what_they_say() {
        let logits = [0.5f32.ln(), 0.25f32.ln(), 0.15f32.ln(), 0.1f32.ln()];
        let off = SamplerConfig { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Default::default() };
        let kept = |config: SamplerConfig| {
            let mut seen = draws(&config, &logits, 2000);
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        assert_eq!(kept(off.clone()), [0, 1, 2, 3]);
        assert_eq!(kept(SamplerConfig { top_k: 2, ..off.clone() }), [0, 1]);
        assert_eq!(kept(SamplerConfig { top_p: 0.7, ..off.clone() }), [0, 1]);
        assert_eq!(kept(SamplerConfig { top_p: 0.8, ..off.clone() }), [0, 1, 2]);
        assert_eq!(kept(SamplerConfig { min_p: 0.25, ..off.clone() }), [0, 1, 2]);
        let bias = vec![(0, f32::NEG_INFINITY), (3, f32::NEG_INFINITY)];
        assert_eq!(kept(SamplerConfig { logit_bias: bias, ..off }), [1, 2]);
    }

    #[test]
    fn penalties_lower_what_was_said() {
        let config = SamplerConfig {
            temperature: 0.0,
            presence_penalty: 1.0,
            frequency_penalty: 0.5,
            penalty_window: 3,
            ..Default::default()
        };
        let mut sampler = Sampler::new(config);
        let logits = [2.0, 1.2, 0.0];
        assert_eq!(sampler.sample(&logits), Ok(0));
        sampler.accept(0);
        assert_eq!(sampler.sample(&logits), Ok(1));
        // Out of the window after three other tokens.
        (0..3).for_each(|_| sampler.accept(2));
        assert_eq!(sampler.sample(&logits), Ok(0));
    }

    /// What a backend may give for `Want::Best(k)`: the `k` largest and a few others, ascending.
    fn at_least_the_best(logits: &[f32], k: usize) -> (Vec<u32>, Vec<f32>) {
        let mut ids = best(logits, k);
        ids.extend([17, 400, 999]);
        ids.sort_unstable();
        ids.dedup();
        let values = ids.iter().map(|&id| logits[id as usize]).collect();
        (ids, values)
    }

    #[test]
    fn as_many_of_the_best_as_needed_decide_like_all() {
        let base = SamplerConfig { penalty_window: 8, ..Default::default() };
        let penalised =
            SamplerConfig { repeat_penalty: 1.3, presence_penalty: 0.5, frequency_penalty: 0.2, ..base };
        let configs = [
            SamplerConfig { temperature: 0.0, ..penalised.clone() },
            SamplerConfig {
                temperature: 0.0,
                logit_bias: vec![(143, f32::NEG_INFINITY)],
                ..penalised.clone()
            },
            SamplerConfig { top_k: 5, ..penalised.clone() },
            SamplerConfig { top_k: 1, logit_bias: vec![(286, -3.0), (143, -100.0)], ..penalised },
            SamplerConfig::default(),
        ];
        let equals: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 1000 / 4) as f32 / 25.0).collect();
        for config in configs {
            for logits in [&logits(), &equals] {
                let (mut whole, mut sparse) = (Sampler::new(config.clone()), Sampler::new(config.clone()));
                for step in 0..100 {
                    let Want::Best(k) = sparse.need() else { panic!("{config:?} needs all") };
                    let (ids, values) = at_least_the_best(logits, k);
                    let token = whole.sample(logits).unwrap();
                    let best = Logits::Best { ids: &ids, values: &values };
                    assert_eq!(sparse.sample_from(best), Ok(token), "{config:?}, step {step}");
                    whole.accept(token);
                    sparse.accept(token);
                }
            }
        }
    }

    #[test]
    fn what_raises_a_token_needs_all_logits() {
        let base = SamplerConfig::default();
        for config in [
            SamplerConfig { top_k: 0, ..base.clone() },
            SamplerConfig { logit_bias: vec![(3, 0.1)], ..base.clone() },
            SamplerConfig { repeat_penalty: 0.9, ..base.clone() },
            SamplerConfig { presence_penalty: -0.1, ..base.clone() },
            SamplerConfig { frequency_penalty: -0.1, ..base },
        ] {
            assert_eq!(Sampler::new(config.clone()).need(), Want::Logits, "{config:?}");
        }
    }

    #[test]
    fn no_finite_logit_is_an_error() {
        let config = SamplerConfig::default();
        let mut sampler = Sampler::new(config);
        assert_eq!(sampler.sample(&[f32::NAN; 4]), Err(NoCandidate));
        assert_eq!(sampler.sample(&[]), Err(NoCandidate));
    }

    #[test]
    fn log_probabilities_sum_to_one() {
        let all = top_logprobs(&logits(), 1000);
        assert_eq!(all.len(), 1000);
        assert!(all.windows(2).all(|w| w[0].1 >= w[1].1));
        let sum: f64 = all.iter().map(|&(_, l)| f64::from(l).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5);
    }
}
