//! What a compressed key/value cache costs in quality.
//!
//! [`compare`] runs one text through one model with several caches side by side: a reference, usually F32, and
//! candidates. All are fed the text's own tokens, so that position for position the logits can be compared; besides,
//! a greedy continuation says where the outputs part. [`Thresholds`] judge the result.
//!
//! The text is cut as llama-perplexity cuts it: into chunks of the context's length that begin with the first token of
//! the text, of which the second half is measured. Every measured token therefore looks back at half a context or
//! more, and perplexities compare with those of other programs.

mod formats;
mod run;
mod stats;
mod thresholds;

pub use formats::KvFormats;
pub use run::{GateOptions, Progress, compare};
pub use stats::{Distribution, Similarity, TokenComparison, mean, percentile, standard_error};
pub use thresholds::{Measure, Miss, SMALL_MODEL, Thresholds};

use crate::error::EngineError;

/// Why caches could not be compared.
#[derive(Debug, thiserror::Error)]
pub enum QualityError {
    /// The model or the device.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A context without a second half.
    #[error("a context of {0} positions has no second half to measure; give -c 4 or more")]
    ContextTooSmall(usize),
    /// A context beyond what the model was trained for.
    #[error(
        "a context of {context} positions is more than the {trained} that the model was trained for; lower -c"
    )]
    ContextTooLarge {
        /// Positions asked for.
        context: usize,
        /// Positions the model was trained for.
        trained: usize,
    },
    /// A text that does not fill one context.
    #[error(
        "the text has {tokens} tokens, which do not fill a context of {context}; lower -c, or give a longer text"
    )]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Positions of the context.
        context: usize,
    },
    /// Logits that are no numbers.
    #[error(
        "with a {formats} cache the logits at position {position} of a chunk are not finite; the model's weights may \
         be damaged, or its activations overflow"
    )]
    NotFinite {
        /// The cache.
        formats: KvFormats,
        /// Position in its context.
        position: usize,
    },
    /// The run was cancelled.
    #[error("interrupted before all of the text was measured")]
    Cancelled,
}

/// How a candidate compares with the reference.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Formats of the reference.
    pub reference: KvFormats,
    /// Formats of the candidate.
    pub candidate: KvFormats,
    /// The measured positions, in the order of the text.
    pub tokens: Vec<TokenComparison>,
    /// Attention output of each layer, over the measured positions.
    pub layers: Vec<LayerError>,
    /// Tokens of the greedy continuation before the first that differs; absent when none does.
    pub first_divergence: Option<usize>,
    /// Tokens of the reference's greedy continuation.
    pub greedy_tokens: usize,
}

/// How a layer's attention output, before its output projection, compares with the reference's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerError {
    /// Mean over the positions of the cosine of the two vectors.
    pub cosine: f64,
    /// `sqrt(sum |r - c|^2 / sum |r|^2)` over all positions.
    pub rel_l2: f64,
}

impl From<Similarity> for LayerError {
    fn from(similarity: Similarity) -> Self {
        Self { cosine: similarity.cosine(), rel_l2: similarity.relative_l2() }
    }
}

impl Comparison {
    /// Perplexity with the reference.
    pub fn reference_perplexity(&self) -> f64 {
        mean(self.tokens.iter().map(|t| t.reference_nll)).exp()
    }

    /// Perplexity with the candidate.
    pub fn candidate_perplexity(&self) -> f64 {
        mean(self.tokens.iter().map(|t| t.candidate_nll)).exp()
    }

    /// Relative change of the perplexity, in percent.
    pub fn delta_percent(&self) -> f64 {
        100.0 * mean(self.tokens.iter().map(|t| t.candidate_nll - t.reference_nll)).exp_m1()
    }

    /// One standard error of [`delta_percent`](Self::delta_percent), from the paired differences of the tokens.
    pub fn delta_uncertainty(&self) -> f64 {
        let differences: Vec<f64> = self.tokens.iter().map(|t| t.candidate_nll - t.reference_nll).collect();
        (100.0 + self.delta_percent()) * standard_error(&differences)
    }

    /// Mean KL divergence, in nat a token.
    pub fn kld_mean(&self) -> f64 {
        mean(self.tokens.iter().map(|t| t.kld))
    }

    /// The KL divergence that 99 % of the tokens stay below, in nat.
    pub fn kld_p99(&self) -> f64 {
        percentile(&self.tokens.iter().map(|t| t.kld).collect::<Vec<_>>(), 0.99)
    }

    /// Share of positions where both make the same greedy choice.
    pub fn same_top1(&self) -> f64 {
        mean(self.tokens.iter().map(|t| f64::from(u8::from(t.same_greedy))))
    }

    /// The layer whose attention output is least like the reference's.
    pub fn worst_layer(&self) -> Option<(usize, LayerError)> {
        self.layers.iter().copied().enumerate().min_by(|a, b| a.1.cosine.total_cmp(&b.1.cosine))
    }
}
