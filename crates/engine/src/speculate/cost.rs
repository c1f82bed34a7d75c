//! What a pass costs by its number of rows.

use std::time::Duration;

/// Measurements that are kept for each number of rows; their median counts, so that a pause of the process does not.
const KEPT: usize = 7;
/// What a row more is taken to cost before any was measured, as a share of a pass with one row.
const ASSUMED_ROW: f64 = 0.25;
/// The least that a row more is taken to cost beyond what was measured.
const LEAST_ROW: f64 = 0.02;

/// Durations of forward passes by their number of rows, measured as they happen. On a processor that waits for weights
/// a few rows cost little more than one; on one that is busy computing they cost nearly as many times more.
#[derive(Clone, Debug, Default)]
pub struct RowCosts {
    /// By rows, the last measurements in seconds.
    samples: Vec<Vec<f64>>,
    /// Next place in each.
    next: Vec<usize>,
}

impl RowCosts {
    /// Nothing measured.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes that a pass of `rows` rows took so long.
    pub fn observe(&mut self, rows: usize, time: Duration) {
        if self.samples.len() <= rows {
            self.samples.resize(rows + 1, Vec::new());
            self.next.resize(rows + 1, 0);
        }
        let (samples, next) = (&mut self.samples[rows], &mut self.next[rows]);
        let seconds = time.as_secs_f64();
        if samples.len() < KEPT {
            samples.push(seconds)
        } else {
            samples[*next] = seconds
        }
        *next = (*next + 1) % KEPT;
    }

    /// The median duration of passes of `rows` rows, in seconds, `None` when there was none.
    pub fn measured(&self, rows: usize) -> Option<f64> {
        let mut samples = self.samples.get(rows).filter(|s| !s.is_empty())?.clone();
        samples.sort_by(f64::total_cmp);
        Some(samples[samples.len() / 2])
    }

    /// What a pass of `rows` rows takes, in seconds: as measured, else from the neighbours that were; `None` before
    /// anything was measured for one row.
    pub fn estimate(&self, rows: usize) -> Option<f64> {
        let one = self.measured(1)?;
        if let Some(exact) = self.measured(rows) {
            return Some(exact.max(one));
        }
        let (low, low_cost) = (1..rows).rev().find_map(|n| Some((n, self.measured(n)?.max(one))))?;
        let above = (rows + 1..self.samples.len()).find_map(|n| Some((n, self.measured(n)?.max(one))));
        let slope = match above {
            Some((high, high_cost)) => (high_cost - low_cost).max(0.0) / (high - low) as f64,
            None if low == 1 => ASSUMED_ROW * one,
            None => ((low_cost - one) / (low - 1) as f64).max(LEAST_ROW * one),
        };
        Some(low_cost + slope * (rows - low) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn medians_forget_outliers_and_the_past() {
        let mut costs = RowCosts::new();
        assert_eq!(costs.estimate(1), None);
        [10, 11, 900, 10, 12].into_iter().for_each(|t| costs.observe(1, ms(t)));
        assert_eq!(costs.estimate(1), Some(0.011));
        (0..KEPT).for_each(|_| costs.observe(1, ms(20)));
        assert_eq!(costs.estimate(1), Some(0.020));
    }

    #[test]
    fn what_was_not_measured_lies_between_its_neighbours() {
        let mut costs = RowCosts::new();
        costs.observe(1, ms(10));
        let near = |a: Option<f64>, b: f64| assert!((a.unwrap() - b).abs() < 1e-9, "{a:?} is not {b}");
        near(costs.estimate(5), 0.010 * (1.0 + 4.0 * ASSUMED_ROW));
        costs.observe(5, ms(30));
        near(costs.estimate(3), 0.020);
        near(costs.estimate(9), 0.050);
        // More rows never cost less than one.
        costs.observe(2, ms(5));
        near(costs.estimate(2), 0.010);
    }
}
