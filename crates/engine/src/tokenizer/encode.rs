//! Text to token ids.

use super::Tokenizer;
use super::chars::{escape_spaces, length_from_first_byte, replace_invalid};
use super::merge::{Merger, Part};
use super::special::Fragment;
use super::vocab::VocabModel;

/// How text is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put the begin-of-sequence token first, if the vocabulary has one.
    pub add_bos: bool,
    /// Turn the texts of control tokens (`<bos>`, `<|turn>`) into these tokens. Off for what a user wrote: then they
    /// are plain text, and no text yields a control token.
    pub parse_special: bool,
}

/// Texts are merged in stretches of at most this many bytes, which bounds the memory and keeps positions in 32 bits.
const MAX_STRETCH: usize = 1 << 28;

impl Tokenizer {
    /// The ids of the tokens that `text` splits into.
    ///
    /// Takes bytes as well as strings. What is not valid UTF-8 becomes byte tokens in Gemma 3 and U+FFFD, one for
    /// each invalid byte, in Gemma 4. Takes O(n log n) time for n bytes.
    pub fn encode(&self, text: impl AsRef<[u8]>, options: EncodeOptions) -> Vec<u32> {
        let mut ids = Vec::new();
        if options.add_bos {
            ids.extend(self.vocab.special.bos);
        }
        let matcher = if options.parse_special { &self.special } else { &self.always_special };
        let mut merger = Merger::default();
        for fragment in matcher.split(&self.vocab.tokens, text.as_ref()) {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(text) => self.encode_plain(text, &mut merger, &mut ids),
            }
        }
        ids
    }

    pub(super) fn encode_plain(&self, text: &[u8], merger: &mut Merger, ids: &mut Vec<u32>) {
        for stretch in stretches(text) {
            let escaped = escape_spaces(stretch);
            match self.vocab.model {
                VocabModel::SentencePiece => self.merge_by_score(&escaped, merger, ids),
                VocabModel::Gemma4 => {
                    for run in newline_runs(&replace_invalid(&escaped)) {
                        self.merge_by_rank(run, merger, ids);
                    }
                }
            }
        }
    }

    fn merge_by_score(&self, text: &[u8], merger: &mut Merger, ids: &mut Vec<u32>) {
        let rank = |left: Part, right: Part| {
            let id = self.index.find_joined(&self.vocab.tokens, left, right)?;
            Some(rank_of_score(self.vocab.scores[id as usize]))
        };
        for part in merger.merge(text, self.hasher, length_from_first_byte, rank) {
            self.push_part(part, ids);
        }
    }

    fn merge_by_rank(&self, text: &[u8], merger: &mut Merger, ids: &mut Vec<u32>) {
        if text[0] == b'\n'
            && let Some(id) = self.index.find(&self.vocab.tokens, text)
        {
            ids.push(id);
            return;
        }
        let rank = |left: Part, right: Part| self.merges.rank(&self.vocab.merges, left, right);
        for part in merger.merge(text, self.hasher, length_from_first_byte, rank) {
            self.push_part(part, ids);
        }
    }

    /// Adds the token of a merged part, or those of its bytes.
    fn push_part(&self, part: Part, ids: &mut Vec<u32>) {
        match self.index.find_part(&self.vocab.tokens, part) {
            Some(id) => ids.push(id),
            None => ids.extend(part.text.iter().map(|&byte| self.byte_tokens[byte as usize])),
        }
    }
}

/// Orders scores, the highest first, as numbers of which the lowest comes first. Both zeros are the same.
fn rank_of_score(score: f32) -> u32 {
    const SIGN: u32 = 1 << 31;
    let bits = (score + 0.0).to_bits();
    let ascending = if bits & SIGN == 0 { bits | SIGN } else { !bits };
    !ascending
}

/// Cuts `text` into stretches of at most [`MAX_STRETCH`] bytes.
fn stretches(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut end = rest.len().min(MAX_STRETCH);
        // Not within a character; one has at most three bytes after its first.
        for _ in 0..3 {
            if end < rest.len() && rest[end] & 0xc0 == 0x80 {
                end -= 1;
            }
        }
        let (stretch, after) = rest.split_at(end);
        rest = after;
        (!stretch.is_empty()).then_some(stretch)
    })
}

/// Splits `text` into runs of newlines and runs of anything else.
fn newline_runs(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.chunk_by(|&a, &b| (a == b'\n') == (b == b'\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_rank_first() {
        let scores = [f32::INFINITY, 3.5, 1e-40, 0.0, -1e-40, -1.0, -1000.0, f32::NEG_INFINITY];
        assert!(scores.is_sorted_by(|&a, &b| rank_of_score(a) < rank_of_score(b)));
        assert_eq!(rank_of_score(0.0), rank_of_score(-0.0));
    }

    #[test]
    fn runs_alternate() {
        let runs: Vec<_> = newline_runs(b"\n\na b\n\xff").collect();
        assert_eq!(runs, [&b"\n\n"[..], b"a b", b"\n", b"\xff"]);
        assert_eq!(newline_runs(b"").count(), 0);
    }

    #[test]
    fn short_text_is_one_stretch() {
        assert_eq!(stretches(b"abc").collect::<Vec<_>>(), [b"abc"]);
        assert_eq!(stretches(b"").count(), 0);
    }
}
