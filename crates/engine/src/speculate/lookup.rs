//! Drafts from the text itself: what followed the last time that it went like this.
//!
//! Every pair of neighbouring tokens is indexed by hash chains, the newest occurrence first, as in LZ77 compressors. The
//! places where the text's last pair stood before are extended backwards; what followed the longest matches is merged into
//! a tree, in which a token's confidence grows with the length of the match behind it and with the share of the matches
//! that agree.

use std::collections::HashMap;

use lapidary_backend::Backend;

use super::drafter::{DraftRequest, Drafter};
use super::tree::DraftTree;
use crate::error::Result;

/// Earlier occurrences that are looked at.
const MOST_OCCURRENCES: usize = 64;
/// The longest matches among them, whose continuations are drafted.
const MOST_CONTINUATIONS: usize = 8;
/// Tokens that a match is extended backwards by at most.
const LONGEST_MATCH: usize = 32;
/// No earlier occurrence.
const NONE: u32 = u32::MAX;

/// The drafter `lookup`.
#[derive(Debug, Default)]
pub struct LookupDrafter {
    /// The tokens that are indexed, all but the text's last one.
    text: Vec<u32>,
    /// The last place where a pair of tokens ended.
    last: HashMap<(u32, u32), u32>,
    /// For each place, the one before it where the same pair ended.
    before: Vec<u32>,
}

/// An earlier occurrence of the text's end.
#[derive(Clone, Copy)]
struct Match {
    /// Tokens that agree.
    length: usize,
    /// Place of the last of them.
    end: usize,
}

impl LookupDrafter {
    /// A drafter that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Drafts at most `depth` tokens deep, `nodes` in all, for what follows `text`.
    pub fn lookup(&mut self, text: &[u32], depth: usize, nodes: usize) -> DraftTree {
        self.index(text);
        let mut tree = DraftTree::new();
        let matches = self.matches(text);
        let Some(longest) = matches.first().map(|m| m.length) else { return tree };
        // Matches much shorter than the longest say little beside it.
        let votes: Vec<Match> = matches.into_iter().filter(|m| 2 * m.length >= longest).collect();
        for vote in &votes {
            let mut parent = None;
            for step in 0..depth {
                let token = continuation(text, *vote, step);
                if tree.child(parent, token).is_none() && tree.len() >= nodes {
                    break;
                }
                let sure = self.confidence(text, &votes, *vote, step);
                parent = Some(tree.push(parent, token, sure));
            }
        }
        tree
    }

    /// Confidence in the token of `vote` at `step`: the share of the votes that took the same path and agree, times a
    /// factor that approaches 1 as the match grows.
    fn confidence(&self, text: &[u32], votes: &[Match], vote: Match, step: usize) -> f32 {
        let weight = |m: &Match| (m.length * m.length) as f32;
        let agree = |m: &&Match, steps: usize| {
            (0..steps).all(|s| continuation(text, **m, s) == continuation(text, vote, s))
        };
        let total: f32 = votes.iter().filter(|m| agree(m, step)).map(weight).sum();
        let same: f32 = votes.iter().filter(|m| agree(m, step + 1)).map(weight).sum();
        let length = (vote.length + step) as f32;
        same / total * (length / (1.0 + length))
    }

    /// Brings the index up to all tokens of `text` but its last.
    fn index(&mut self, text: &[u32]) {
        let known = text.len().saturating_sub(1);
        if self.text.len() > known || self.text[..] != text[..self.text.len()] {
            *self = Self::default();
        }
        for end in self.text.len()..known {
            let before = match end {
                0 => NONE,
                _ => self.last.insert((text[end - 1], text[end]), end as u32).unwrap_or(NONE),
            };
            self.before.push(before);
        }
        self.text.extend_from_slice(&text[self.text.len()..known]);
    }

    /// The longest earlier occurrences of the text's end, the newer one first among equals.
    fn matches(&self, text: &[u32]) -> Vec<Match> {
        let [.., a, b] = *text else { return Vec::new() };
        let mut matches = Vec::new();
        let mut at = self.last.get(&(a, b)).copied().unwrap_or(NONE);
        while at != NONE && matches.len() < MOST_OCCURRENCES {
            let end = at as usize;
            let pairs = text[..=end].iter().rev().zip(text.iter().rev());
            let length = pairs.take(LONGEST_MATCH).take_while(|(x, y)| x == y).count();
            matches.push(Match { length, end });
            at = self.before[end];
        }
        matches.sort_by_key(|m| std::cmp::Reverse(m.length));
        matches.truncate(MOST_CONTINUATIONS);
        matches
    }
}

/// The token that follows a match after `step` others. A match that reaches into its own continuation goes on as the
/// period that it is.
fn continuation(text: &[u32], found: Match, step: usize) -> u32 {
    let period = text.len() - 1 - found.end;
    text[found.end + 1 + step % period]
}

impl<B: Backend> Drafter<B> for LookupDrafter {
    fn name(&self) -> &str {
        "lookup"
    }

    fn draft(&mut self, request: &mut DraftRequest<'_, B>) -> Result<DraftTree> {
        Ok(self.lookup(request.text, request.depth, request.nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens(tree: &DraftTree) -> Vec<(u32, Option<usize>)> {
        tree.nodes().iter().map(|n| (n.token, n.parent)).collect()
    }

    #[test]
    fn the_longest_match_comes_first_and_others_branch_off() {
        // "1 2 3" was followed by 4 5, the shorter "2 3" later by 8 9.
        let text = [1, 2, 3, 4, 5, 7, 2, 3, 8, 9, 6, 1, 2, 3];
        let tree = LookupDrafter::new().lookup(&text, 2, 10);
        assert_eq!(tokens(&tree), [(4, None), (5, Some(0)), (8, None), (9, Some(2))]);
        let sure: Vec<f32> = tree.nodes().iter().map(|n| n.confidence).collect();
        assert!(sure[0] > sure[2] && sure[1] > sure[0], "{sure:?}");
    }

    #[test]
    fn a_period_goes_on() {
        let tree = LookupDrafter::new().lookup(&[9, 1, 2, 1, 2, 1, 2], 5, 5);
        assert_eq!(tokens(&tree), [(1, None), (2, Some(0)), (1, Some(1)), (2, Some(2)), (1, Some(3))]);
    }

    #[test]
    fn nothing_known_is_nothing_drafted() {
        for text in [&[][..], &[1], &[1, 2], &[1, 2, 3, 4]] {
            assert!(LookupDrafter::new().lookup(text, 8, 8).is_empty());
        }
    }

    proptest! {
        #[test]
        fn a_growing_text_is_as_a_new_one(text in prop::collection::vec(0..4u32, 0..80), cuts in prop::collection::vec(0..80usize, 1..6)) {
            let mut grown = LookupDrafter::new();
            for cut in cuts {
                let text = &text[..cut.min(text.len())];
                let tree = grown.lookup(text, 6, 12);
                prop_assert_eq!(&tree, &LookupDrafter::new().lookup(text, 6, 12));
                prop_assert!(tree.len() <= 12 && tree.depths().iter().all(|&d| d < 6));
                prop_assert!(tree.nodes().iter().all(|n| n.confidence > 0.0 && n.confidence < 1.0));
            }
        }
    }
}
