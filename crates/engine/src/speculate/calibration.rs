//! From a drafter's confidence to the probability that the model agrees, learnt as the text goes.

/// Classes of confidence.
const CLASSES: usize = 16;
/// Observations that the first guess weighs as much as.
const GUESS: f32 = 4.0;
/// Observations in a class after which older ones count half.
const MEMORY: f32 = 64.0;

/// How often tokens of each class of confidence were what the model chose.
#[derive(Clone, Debug)]
pub struct Calibration {
    hits: [f32; CLASSES],
    seen: [f32; CLASSES],
}

impl Default for Calibration {
    fn default() -> Self {
        Self { hits: [0.0; CLASSES], seen: [0.0; CLASSES] }
    }
}

impl Calibration {
    /// The probability that a token of this confidence is the model's choice, its parent being so.
    pub fn probability(&self, confidence: f32) -> f32 {
        let class = class(confidence);
        (self.hits[class] + GUESS * confidence.clamp(0.0, 1.0)) / (self.seen[class] + GUESS)
    }

    /// Notes whether a token of this confidence was the model's choice.
    pub fn observe(&mut self, confidence: f32, hit: bool) {
        let class = class(confidence);
        self.hits[class] += f32::from(u8::from(hit));
        self.seen[class] += 1.0;
        if self.seen[class] > MEMORY {
            self.hits[class] /= 2.0;
            self.seen[class] /= 2.0;
        }
    }
}

/// Classes are equal steps of `log(1 / (1 - confidence))`, two to a halving of the doubt.
fn class(confidence: f32) -> usize {
    let doubt = (1.0 - confidence).clamp(1e-6, 1.0);
    ((-2.0 * doubt.log2()) as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guess_gives_way_to_what_is_seen() {
        let mut calibration = Calibration::default();
        assert_eq!(calibration.probability(0.9), 0.9);
        (0..40).for_each(|i| calibration.observe(0.9, i % 4 == 0));
        assert!((calibration.probability(0.9) - 0.25).abs() < 0.08);
        // Another class is another matter.
        assert_eq!(calibration.probability(0.2), 0.2);
        (0..200).for_each(|_| calibration.observe(0.9, true));
        assert!(calibration.probability(0.9) > 0.95);
    }

    #[test]
    fn any_confidence_has_a_class() {
        for confidence in [f32::NAN, f32::NEG_INFINITY, -1.0, 0.0, 0.5, 1.0, 7.0] {
            assert!(class(confidence) < CLASSES);
        }
        assert!(class(0.99) > class(0.9) && class(0.9) > class(0.5));
    }
}
