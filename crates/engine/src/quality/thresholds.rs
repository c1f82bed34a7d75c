//! What a cache may cost in quality.

use std::fmt;

use lapidary_backend::KvFormat;

use super::{Comparison, KvFormats};

/// Models of at most this many parameters are small: they have little redundancy, and the same rounding costs more.
pub const SMALL_MODEL: u64 = 400_000_000;

/// Limits of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Largest change of the perplexity either way, in percent.
    pub delta_percent: f64,
    /// Largest mean KL divergence, in nat a token.
    pub kld_mean: f64,
    /// Smallest share of equal greedy choices.
    pub same_top1: f64,
    /// Smallest mean cosine of any layer's attention output.
    pub cosine: f64,
}

impl Thresholds {
    /// The limits for a candidate: those of the looser of its two formats, twice as wide for
    /// [small](SMALL_MODEL) models.
    pub fn for_formats(formats: KvFormats, parameters: u64) -> Self {
        let limits = Self::of(formats.keys).looser(Self::of(formats.values));
        if parameters <= SMALL_MODEL { limits.doubled() } else { limits }
    }

    const fn of(format: KvFormat) -> Self {
        let (delta_percent, kld_mean, same_top1, cosine) = match format {
            KvFormat::F32 | KvFormat::F16 => (0.1, 0.0002, 0.998, 0.9999),
            KvFormat::Tq8 => (0.2, 0.002, 0.99, 0.9995),
            KvFormat::Tq6 => (0.6, 0.008, 0.975, 0.998),
            KvFormat::Tq5 => (1.2, 0.02, 0.955, 0.994),
            KvFormat::Tq4 => (2.5, 0.05, 0.93, 0.98),
        };
        Self { delta_percent, kld_mean, same_top1, cosine }
    }

    fn looser(self, other: Self) -> Self {
        Self {
            delta_percent: self.delta_percent.max(other.delta_percent),
            kld_mean: self.kld_mean.max(other.kld_mean),
            same_top1: self.same_top1.min(other.same_top1),
            cosine: self.cosine.min(other.cosine),
        }
    }

    /// Twice the distance from a perfect score.
    fn doubled(self) -> Self {
        Self {
            delta_percent: 2.0 * self.delta_percent,
            kld_mean: 2.0 * self.kld_mean,
            same_top1: 1.0 - 2.0 * (1.0 - self.same_top1),
            cosine: 1.0 - 2.0 * (1.0 - self.cosine),
        }
    }

    /// What fell short, the most telling first; empty when everything is within its limits.
    pub fn missed(&self, comparison: &Comparison) -> Vec<Miss> {
        let mut missed = Vec::new();
        // Written so that what is no number never passes.
        let mut at_most = |measure: Measure, found: f64, limit: f64| {
            if !matches!(
                found.partial_cmp(&limit),
                Some(std::cmp::Ordering::Less | std::cmp::Ordering::Equal)
            ) {
                missed.push(Miss { measure, found, limit });
            }
        };
        at_most(Measure::KldMean, comparison.kld_mean(), self.kld_mean);
        at_most(Measure::DeltaPercent, comparison.delta_percent().abs(), self.delta_percent);
        let mut at_least = |measure: Measure, found: f64, limit: f64| {
            if !matches!(
                found.partial_cmp(&limit),
                Some(std::cmp::Ordering::Greater | std::cmp::Ordering::Equal)
            ) {
                missed.push(Miss { measure, found, limit });
            }
        };
        at_least(Measure::SameTop1, comparison.same_top1(), self.same_top1);
        for (layer, error) in comparison.layers.iter().enumerate() {
            at_least(Measure::Cosine { layer }, error.cosine, self.cosine);
        }
        missed
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Mean KL divergence, nat a token.
    KldMean,
    /// Size of the relative change of the perplexity, percent.
    DeltaPercent,
    /// Share of equal greedy choices.
    SameTop1,
    /// Mean cosine of a layer's attention output.
    Cosine {
        /// The layer.
        layer: usize,
    },
}

/// A limit that was not kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Miss {
    /// What was measured.
    pub measure: Measure,
    /// What was found.
    pub found: f64,
    /// The limit.
    pub limit: f64,
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { measure, found, limit } = *self;
        match measure {
            Measure::KldMean => write!(f, "mean KL divergence {found:.3e} nat, at most {limit}"),
            Measure::DeltaPercent => write!(f, "perplexity changed by {found:.3} %, at most {limit} %"),
            Measure::SameTop1 => {
                write!(f, "same greedy choice {:.2} %, at least {} %", 100.0 * found, tidy(100.0 * limit))
            }
            Measure::Cosine { layer } => {
                write!(f, "layer {layer}: cosine {found:.6}, at least {}", tidy(limit))
            }
        }
    }
}

/// A limit without the noise of its binary fraction.
fn tidy(limit: f64) -> f64 {
    (limit * 1e9).round() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quality::{LayerError, TokenComparison};

    fn formats(keys: KvFormat, values: KvFormat) -> KvFormats {
        KvFormats { keys, values }
    }

    #[test]
    fn mixed_pairs_take_the_looser_format() {
        let large = SMALL_MODEL + 1;
        let tq4 = Thresholds::for_formats(formats(KvFormat::Tq4, KvFormat::Tq4), large);
        assert_eq!(Thresholds::for_formats(formats(KvFormat::F16, KvFormat::Tq4), large), tq4);
        assert_eq!(Thresholds::for_formats(formats(KvFormat::Tq4, KvFormat::Tq8), large), tq4);
        assert_eq!((tq4.delta_percent, tq4.kld_mean, tq4.same_top1), (2.5, 0.05, 0.93));
    }

    #[test]
    fn small_models_get_twice_the_room() {
        let tq8 = Thresholds::for_formats(formats(KvFormat::Tq8, KvFormat::Tq8), 270_000_000);
        assert_eq!((tq8.delta_percent, tq8.kld_mean), (0.4, 0.004));
        assert!((tq8.same_top1 - 0.98).abs() < 1e-12 && (tq8.cosine - 0.999).abs() < 1e-12);
    }

    #[test]
    fn limits_grow_with_every_bit_saved() {
        for pair in KvFormat::ALL.windows(2) {
            let (fine, coarse) = (Thresholds::of(pair[0]), Thresholds::of(pair[1]));
            assert_eq!(coarse, fine.looser(coarse), "{} and {}", pair[0], pair[1]);
        }
    }

    fn comparison(kld: f64, cosine: f64) -> Comparison {
        let token = TokenComparison {
            position: 0,
            kld,
            reference_nll: 1.0,
            candidate_nll: 1.0 + kld,
            same_greedy: kld < 0.5,
        };
        Comparison {
            reference: formats(KvFormat::F32, KvFormat::F32),
            candidate: formats(KvFormat::Tq8, KvFormat::Tq8),
            tokens: vec![token; 4],
            layers: vec![LayerError { cosine: 1.0, rel_l2: 0.0 }, LayerError { cosine, rel_l2: 0.0 }],
            first_divergence: None,
            greedy_tokens: 0,
        }
    }

    #[test]
    fn every_limit_that_is_missed_is_named() {
        let limits = Thresholds { delta_percent: 0.2, kld_mean: 0.002, same_top1: 0.99, cosine: 0.9995 };
        assert_eq!(limits.missed(&comparison(0.001, 0.9995)), []);
        let measures = |c: &Comparison| limits.missed(c).iter().map(|miss| miss.measure).collect::<Vec<_>>();
        assert_eq!(measures(&comparison(0.0, 0.999)), [Measure::Cosine { layer: 1 }]);
        assert_eq!(measures(&comparison(0.01, 1.0)), [Measure::KldMean, Measure::DeltaPercent]);
        let all = [Measure::KldMean, Measure::DeltaPercent, Measure::SameTop1, Measure::Cosine { layer: 1 }];
        assert_eq!(measures(&comparison(0.7, 0.1)), all);
        assert_eq!(measures(&comparison(0.0, f64::NAN)), [Measure::Cosine { layer: 1 }]);
        let text = limits.missed(&comparison(0.7, 0.1))[3].to_string();
        assert_eq!(text, "layer 1: cosine 0.100000, at least 0.9995");
    }
}
