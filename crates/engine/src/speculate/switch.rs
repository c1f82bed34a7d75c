//! Switching a drafter off where it loses time.

/// Drafted rounds that are judged together.
const WINDOW: usize = 4;
/// Windows lost in a row after which the drafter rests.
const LOST_WINDOWS: usize = 2;
/// Rounds of the first rest; each further one is twice as long.
const FIRST_REST: usize = 32;
/// Rounds of the longest.
const LONGEST_REST: usize = 512;

/// Judges windows of drafted rounds by their time. After a rest one lost window is enough for the next one.
#[derive(Clone, Debug)]
pub(super) struct Switch {
    rounds: usize,
    /// Time of the window's rounds, and what its tokens would have taken without drafts.
    spent: f64,
    plain: f64,
    lost: usize,
    resting: usize,
    next_rest: usize,
    rests: usize,
}

impl Default for Switch {
    fn default() -> Self {
        Self { rounds: 0, spent: 0.0, plain: 0.0, lost: 0, resting: 0, next_rest: FIRST_REST, rests: 0 }
    }
}

impl Switch {
    /// Whether to draft in this round; a round of rest passes otherwise.
    pub fn on(&mut self) -> bool {
        if self.resting == 0 {
            return true;
        }
        self.resting -= 1;
        false
    }

    /// Notes a drafted round: its time, and what as many tokens take without drafts.
    pub fn judge(&mut self, spent: f64, plain: f64) {
        self.rounds += 1;
        self.spent += spent;
        self.plain += plain;
        if self.rounds < WINDOW {
            return;
        }
        let lost = self.spent > self.plain;
        (self.rounds, self.spent, self.plain) = (0, 0.0, 0.0);
        if !lost {
            (self.lost, self.next_rest) = (0, FIRST_REST);
            return;
        }
        self.lost += 1;
        if self.lost >= LOST_WINDOWS {
            self.rest();
        }
    }

    /// Rests now.
    pub fn rest(&mut self) {
        self.resting = self.next_rest;
        self.next_rest = (2 * self.next_rest).min(LONGEST_REST);
        self.lost = LOST_WINDOWS - 1;
        self.rests += 1;
    }

    /// Rests so far.
    pub fn rests(&self) -> usize {
        self.rests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rests(switch: &mut Switch) -> usize {
        (0..).take_while(|_| !switch.on()).count()
    }

    #[test]
    fn two_lost_windows_bring_a_rest_and_then_one_a_longer_one() {
        let mut switch = Switch::default();
        (0..WINDOW).for_each(|_| switch.judge(2.0, 1.0));
        assert_eq!(rests(&mut switch), 0);
        (0..WINDOW).for_each(|_| switch.judge(2.0, 1.0));
        assert_eq!(rests(&mut switch), FIRST_REST);
        (0..WINDOW).for_each(|_| switch.judge(2.0, 1.0));
        assert_eq!(rests(&mut switch), 2 * FIRST_REST);
        assert_eq!(switch.rests(), 2);
    }

    #[test]
    fn a_won_window_forgives() {
        let mut switch = Switch::default();
        for _ in 0..5 {
            (0..WINDOW).for_each(|_| switch.judge(2.0, 1.0));
            (0..WINDOW).for_each(|_| switch.judge(0.5, 1.0));
        }
        assert_eq!(rests(&mut switch), 0);
    }
}
