//! Finding whole tokens (control and user-defined ones) in text before it is merged.

use std::ops::Range;

use super::error::TokenizerError;
use super::vocab::{Pieces, TokenType, Vocab};

/// Longest text of a token that is matched as a whole, in bytes. Bounds the work per position of the text;
/// Gemma's longest has 48.
const MAX_BYTES: usize = 512;

/// Finds the leftmost of a set of tokens in a text, and of those that begin there the longest.
#[derive(Debug)]
pub(super) struct SpecialMatcher {
    /// The tokens in the order of their texts.
    sorted: Vec<u32>,
    /// Where in `sorted` the texts with a given first byte lie.
    by_first_byte: Box<[Range<u32>; 256]>,
}

/// A part of a text: a token matched as a whole, or what lies between.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    Token(u32),
    Text(&'a [u8]),
}

impl SpecialMatcher {
    /// A matcher of all tokens of the given types. Empty texts never match; of equal texts the lowest id counts.
    pub fn new(vocab: &Vocab, types: &[TokenType]) -> Result<Self, TokenizerError> {
        Self::of(vocab, types, |_| true)
    }

    /// As [`new`](Self::new), of those tokens only that `keep` names.
    pub fn of(
        vocab: &Vocab,
        types: &[TokenType],
        keep: impl Fn(usize) -> bool,
    ) -> Result<Self, TokenizerError> {
        let tokens = &vocab.tokens;
        let mut sorted = Vec::new();
        for (id, ty) in vocab.types.iter().enumerate() {
            let text = tokens.get(id);
            if !types.contains(ty) || text.is_empty() || !keep(id) {
                continue;
            }
            if text.len() > MAX_BYTES {
                return Err(TokenizerError::SpecialTooLong { id, found: text.len(), limit: MAX_BYTES });
            }
            sorted.push(id as u32);
        }
        // The sort is stable, so the lowest of several ids with the same text comes first and stays.
        sorted.sort_by_key(|&id| tokens.get(id as usize));
        sorted.dedup_by_key(|id| tokens.get(*id as usize));
        let by_first_byte = ranges_by_first_byte(tokens, &sorted);
        Ok(Self { sorted, by_first_byte })
    }

    /// Splits `text` into tokens and the texts between them, none of which is empty.
    pub fn split<'a>(&'a self, tokens: &'a Pieces, text: &'a [u8]) -> impl Iterator<Item = Fragment<'a>> {
        let mut rest = text;
        let mut found = None;
        std::iter::from_fn(move || {
            if let Some(id) = found.take() {
                return Some(Fragment::Token(id));
            }
            if rest.is_empty() {
                return None;
            }
            let Some((range, id)) = self.first_match(tokens, rest) else {
                return Some(Fragment::Text(std::mem::take(&mut rest)));
            };
            let before = &rest[..range.start];
            rest = &rest[range.end..];
            if before.is_empty() {
                return Some(Fragment::Token(id));
            }
            found = Some(id);
            Some(Fragment::Text(before))
        })
    }

    /// The token whose text is `text`.
    pub fn find(&self, tokens: &Pieces, text: &[u8]) -> Option<u32> {
        let at = self.sorted.binary_search_by_key(&text, |&id| tokens.get(id as usize)).ok()?;
        Some(self.sorted[at])
    }

    fn first_match(&self, tokens: &Pieces, text: &[u8]) -> Option<(Range<usize>, u32)> {
        (0..text.len()).find_map(|start| {
            let (len, id) = self.longest_prefix(tokens, &text[start..])?;
            Some((start..start + len, id))
        })
    }

    /// The longest token that `text`, which is not empty, begins with, and its length.
    fn longest_prefix(&self, tokens: &Pieces, text: &[u8]) -> Option<(usize, u32)> {
        let range = &self.by_first_byte[text[0] as usize];
        let mut candidates = &self.sorted[range.start as usize..range.end as usize];
        let mut longest = None;
        // `candidates` are the tokens whose first `len` bytes are those of the text; the shortest stands first.
        for len in 1.. {
            let Some(&first) = candidates.first() else { break };
            if tokens.get(first as usize).len() == len {
                longest = Some((len, first));
                candidates = &candidates[1..];
            }
            let Some(&byte) = text.get(len) else { break };
            let next = |&id: &u32| tokens.get(id as usize)[len];
            let begin = candidates.partition_point(|id| next(id) < byte);
            let end = begin + candidates[begin..].partition_point(|id| next(id) == byte);
            candidates = &candidates[begin..end];
        }
        longest
    }
}

fn ranges_by_first_byte(tokens: &Pieces, sorted: &[u32]) -> Box<[Range<u32>; 256]> {
    let mut ranges = Box::new([const { 0..0 }; 256]);
    let mut start = 0;
    for group in sorted.chunk_by(|&a, &b| tokens.get(a as usize)[0] == tokens.get(b as usize)[0]) {
        let end = start + group.len() as u32;
        ranges[tokens.get(group[0] as usize)[0] as usize] = start..end;
        start = end;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::super::testing::vocab;
    use super::*;
    use Fragment::{Text, Token};

    fn split(texts: &[&str], text: &str) -> Vec<Result<u32, String>> {
        let vocab = vocab(texts.iter().map(|t| (*t, TokenType::Control, 0.0)), &[]);
        let matcher = SpecialMatcher::new(&vocab, &[TokenType::Control]).unwrap();
        matcher
            .split(&vocab.tokens, text.as_bytes())
            .map(|fragment| match fragment {
                Token(id) => Ok(id),
                Text(text) => Err(String::from_utf8(text.to_vec()).unwrap()),
            })
            .collect()
    }

    fn text(text: &str) -> Result<u32, String> {
        Err(text.into())
    }

    #[test]
    fn longest_token_wins() {
        let tokens = ["<a", "<a>", "<a>b"];
        assert_eq!(split(&tokens, "x<a>by<a>cz<a"), [text("x"), Ok(2), text("y"), Ok(1), text("cz"), Ok(0)]);
    }

    #[test]
    fn a_long_token_that_breaks_off_leaves_the_short_one() {
        assert_eq!(split(&["<", "<abcd>", "<abx"], "<abcd<abx"), [Ok(0), text("abcd"), Ok(2)]);
    }

    #[test]
    fn runs_take_the_longest_first() {
        assert_eq!(split(&["\n", "\n\n", "\n\n\n"], "\n\n\n\n\n"), [Ok(2), Ok(1)]);
    }

    #[test]
    fn of_equal_texts_the_lowest_id_counts_and_empty_ones_never_match() {
        assert_eq!(split(&["", "<x>", "<x>"], "a<x><x>"), [text("a"), Ok(1), Ok(1)]);
        assert_eq!(split(&[""], "abc"), [text("abc")]);
        assert_eq!(split(&["<x>"], ""), []);
    }

    #[test]
    fn bytes_above_ascii_are_matched() {
        assert_eq!(split(&["é", "éa", "\u{10ffff}"], "éb\u{10ffff}éa"), [Ok(0), text("b"), Ok(2), Ok(1)]);
    }

    #[test]
    fn tokens_too_long_to_match_are_refused() {
        let long = "<".repeat(MAX_BYTES + 1);
        let vocab = vocab([(&*long, TokenType::Control, 0.0)], &[]);
        let error = SpecialMatcher::new(&vocab, &[TokenType::Control]).unwrap_err();
        assert!(matches!(error, TokenizerError::SpecialTooLong { id: 0, found: 513, limit: 512 }));
    }
}
