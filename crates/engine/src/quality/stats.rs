//! The statistics: divergence of distributions, percentiles, similarity of vectors. All in `f64`.

use crate::sample::argmax;

/// The distribution that a row of reference logits stands for.
pub struct Distribution<'a> {
    logits: &'a [f32],
    probabilities: Vec<f64>,
    log_sum: f64,
    greedy: Option<u32>,
}

/// How a candidate's logits compare with the reference's at one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenComparison {
    /// Position in its context.
    pub position: usize,
    /// KL divergence of the candidate from the reference, `sum p ln(p / q)`, in nat.
    pub kld: f64,
    /// Negative log-likelihood of the text's next token under the reference, in nat.
    pub reference_nll: f64,
    /// The same under the candidate.
    pub candidate_nll: f64,
    /// Whether both give the same token the largest logit.
    pub same_greedy: bool,
}

impl<'a> Distribution<'a> {
    /// The softmax of `logits`.
    pub fn new(logits: &'a [f32]) -> Self {
        let log_sum = log_sum_exp(logits);
        let probabilities = logits.iter().map(|&l| (f64::from(l) - log_sum).exp()).collect();
        Self { logits, probabilities, log_sum, greedy: argmax(logits) }
    }

    /// Whether the logits make a distribution: all are finite.
    pub fn is_finite(&self) -> bool {
        self.log_sum.is_finite()
    }

    /// Compares with a candidate's logits at `position`, where the text goes on with `next`. Absent when one of the
    /// two holds what is not finite.
    ///
    /// # Panics
    /// When the lengths differ, or `next` is outside the vocabulary.
    pub fn compare(&self, candidate: &[f32], position: usize, next: u32) -> Option<TokenComparison> {
        assert_eq!(self.logits.len(), candidate.len(), "logits over one vocabulary");
        let candidate_sum = log_sum_exp(candidate);
        // sum p (ln p - ln q) with ln p = r - log_sum; in this form it is exactly zero for equal logits.
        let shift: f64 = self
            .probabilities
            .iter()
            .zip(self.logits.iter().zip(candidate))
            .map(|(p, (&r, &c))| p * (f64::from(r) - f64::from(c)))
            .sum();
        let kld = shift + (candidate_sum - self.log_sum);
        let nll = |logits: &[f32], log_sum: f64| log_sum - f64::from(logits[next as usize]);
        let found = TokenComparison {
            position,
            // A divergence is never negative; rounding may make it so by some 1e-16.
            kld: kld.max(0.0),
            reference_nll: nll(self.logits, self.log_sum),
            candidate_nll: nll(candidate, candidate_sum),
            same_greedy: self.greedy == argmax(candidate),
        };
        // `kld` itself, because the maximum of no number and zero is zero.
        [kld, found.reference_nll, found.candidate_nll].iter().all(|x| x.is_finite()).then_some(found)
    }
}

/// `ln(sum(exp(logits)))`, with every term in `f64`.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln()
}

/// The mean; zero of no values.
pub fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, n) = values.into_iter().fold((0.0, 0usize), |(sum, n), x| (sum + x, n + 1));
    if n == 0 { 0.0 } else { sum / n as f64 }
}

/// The standard error of the mean; zero of fewer than two values.
pub fn standard_error(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let average = mean(values.iter().copied());
    let squares: f64 = values.iter().map(|x| (x - average).powi(2)).sum();
    (squares / (values.len() - 1) as f64 / values.len() as f64).sqrt()
}

/// The value below which `fraction` of the values lie, linear between neighbours: the rank is `fraction * (n - 1)`.
/// Zero of no values.
pub fn percentile(values: &[f64], fraction: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let rank = fraction.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
    low + (high - low) * rank.fract()
}

/// Similarity of pairs of vectors, gathered one pair at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Similarity {
    cosines: f64,
    pairs: usize,
    squared_error: f64,
    squared_reference: f64,
}

impl Similarity {
    /// Adds a pair.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn add(&mut self, reference: &[f32], candidate: &[f32]) {
        assert_eq!(reference.len(), candidate.len(), "vectors of one length");
        let (mut dot, mut rr, mut cc, mut error) = (0.0, 0.0, 0.0, 0.0);
        for (&r, &c) in reference.iter().zip(candidate) {
            let (r, c) = (f64::from(r), f64::from(c));
            dot += r * c;
            rr += r * r;
            cc += c * c;
            error += (r - c) * (r - c);
        }
        // Two zero vectors are equal; a zero vector has nothing in common with another.
        let cosine = match (rr == 0.0, cc == 0.0) {
            (true, true) => 1.0,
            (false, false) => dot / (rr * cc).sqrt(),
            _ => 0.0,
        };
        self.cosines += cosine;
        self.pairs += 1;
        self.squared_error += error;
        self.squared_reference += rr;
    }

    /// Mean cosine of the pairs; 1 when there are none.
    pub fn cosine(&self) -> f64 {
        if self.pairs == 0 { 1.0 } else { (self.cosines / self.pairs as f64).min(1.0) }
    }

    /// `sqrt(sum |r - c|^2 / sum |r|^2)` over all pairs; 0 when they are equal.
    pub fn relative_l2(&self) -> f64 {
        if self.squared_error == 0.0 { 0.0 } else { (self.squared_error / self.squared_reference).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-7, "{found} for {expected}");
    }

    #[test]
    fn divergence_agrees_with_hand_values() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2):
        // KL = 1/2 ln 2 + 1/4 ln 1 + 1/4 ln(1/2) = 1/4 ln 2.
        let p = [2f32.ln(), 0.0, 0.0];
        let q = [5.0, 5.0, 5.0 + 2f32.ln()];
        let found = Distribution::new(&p).compare(&q, 7, 2).unwrap();
        close(found.kld, 0.25 * std::f64::consts::LN_2);
        close(found.reference_nll, 4f64.ln());
        close(found.candidate_nll, 2f64.ln());
        assert!(!found.same_greedy);
        assert_eq!(found.position, 7);
        // From a sure thing to a coin: ln 2.
        let found = Distribution::new(&[0.0, -200.0]).compare(&[1.0, 1.0], 0, 0).unwrap();
        close(found.kld, std::f64::consts::LN_2);
        assert!(found.same_greedy);
    }

    #[test]
    fn equal_logits_diverge_by_exactly_nothing() {
        let logits: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 1000) as f32 / 37.0 - 9.0).collect();
        let found = Distribution::new(&logits).compare(&logits.clone(), 0, 3).unwrap();
        assert_eq!(found.kld, 0.0);
        assert_eq!(found.reference_nll, found.candidate_nll);
        assert!(found.same_greedy);
    }

    #[test]
    fn small_divergences_are_not_lost() {
        // Second order: KL of softmax(x) from softmax(x + d) is Var_p(d) / 2; p uniform over two, d = (h, 0).
        let h = 1.0 / 4096.0;
        let found = Distribution::new(&[0.0, 0.0]).compare(&[h, 0.0], 0, 0).unwrap();
        let expected = f64::from(h).powi(2) / 8.0;
        assert!((found.kld / expected - 1.0).abs() < 1e-6, "{} for {expected}", found.kld);
    }

    #[test]
    fn what_is_not_finite_is_refused() {
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(Distribution::new(&[0.0, bad]).compare(&[0.0, 0.0], 0, 0).is_none());
            assert!(Distribution::new(&[0.0, 0.0]).compare(&[0.0, bad], 0, 0).is_none());
        }
    }

    #[test]
    fn percentiles_are_linear_between_ranks() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(percentile(&values, 0.0), 1.0);
        assert_eq!(percentile(&values, 0.5), 2.5);
        assert_eq!(percentile(&values, 1.0), 4.0);
        close(percentile(&values, 0.99), 3.97);
        assert_eq!(percentile(&[5.0], 0.99), 5.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    #[test]
    fn means_and_their_errors() {
        assert_eq!(mean([1.0, 2.0, 6.0]), 3.0);
        // Squared deviations 4 + 1 + 9 = 14; 14 / 2 / 3.
        close(standard_error(&[1.0, 2.0, 6.0]), (14f64 / 6.0).sqrt());
        assert_eq!(standard_error(&[1.0]), 0.0);
    }

    #[test]
    fn similarity_agrees_with_hand_values() {
        let mut similarity = Similarity::default();
        similarity.add(&[3.0, 4.0], &[4.0, 3.0]);
        close(similarity.cosine(), 24.0 / 25.0);
        close(similarity.relative_l2(), (2f64 / 25.0).sqrt());
        similarity.add(&[1.0, 0.0], &[2.0, 0.0]);
        close(similarity.cosine(), (24.0 / 25.0 + 1.0) / 2.0);
        close(similarity.relative_l2(), (3f64 / 26.0).sqrt());
    }

    #[test]
    fn equal_and_zero_vectors() {
        let mut similarity = Similarity::default();
        similarity.add(&[0.1, -0.7, 3e-5], &[0.1, -0.7, 3e-5]);
        similarity.add(&[0.0; 3], &[0.0; 3]);
        assert_eq!((similarity.cosine(), similarity.relative_l2()), (1.0, 0.0));
        similarity.add(&[0.0; 3], &[1.0, 0.0, 0.0]);
        close(similarity.cosine(), 2.0 / 3.0);
    }
}
