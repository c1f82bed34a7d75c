//! Encoding text of two origins: what a template says, in which markers count, and what a user says, in which none does.

use super::Tokenizer;
use super::merge::Merger;
use super::special::Fragment;
use super::vocab::{TokenType, Vocab};

/// Where a piece of a prompt comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The template: control tokens and markers are recognised.
    Template,
    /// A user, a tool, a document: never a control token nor a marker, whatever it says.
    User,
}

impl Tokenizer {
    /// The ids of the text that `segments` form in a row. Control tokens and [markers](Self::is_marker) are recognised
    /// only where they lie within one segment of [`Origin::Template`]; all text between two of them is merged as one,
    /// so that for text without markers the ids are those of the whole text.
    pub fn encode_segments<'a>(&self, segments: impl IntoIterator<Item = (&'a str, Origin)>) -> Vec<u32> {
        let (mut ids, mut text) = (Vec::new(), Vec::new());
        let mut merger = Merger::default();
        for (segment, origin) in segments {
            if origin == Origin::User {
                text.extend_from_slice(segment.as_bytes());
                continue;
            }
            for fragment in self.markers.split(&self.vocab.tokens, segment.as_bytes()) {
                match fragment {
                    Fragment::Text(part) => text.extend_from_slice(part),
                    Fragment::Token(id) => {
                        self.encode_unmarked(&text, &mut merger, &mut ids);
                        text.clear();
                        ids.push(id);
                    }
                }
            }
        }
        self.encode_unmarked(&text, &mut merger, &mut ids);
        ids
    }

    /// Whether a token structures a conversation: a control token, or one of those user-defined ones that mark turns,
    /// channels, tool calls and media.
    pub fn is_marker(&self, id: u32) -> bool {
        is_marker(&self.vocab, id as usize)
    }

    /// Adds the tokens of a text in which nothing is a marker.
    fn encode_unmarked(&self, text: &[u8], merger: &mut Merger, ids: &mut Vec<u32>) {
        for fragment in self.harmless.split(&self.vocab.tokens, text) {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(text) => {
                    let begin = ids.len();
                    self.encode_plain(text, merger, ids);
                    self.spell_markers(begin, ids);
                }
            }
        }
    }

    /// Replaces markers that merging arrived at, from `begin` on, by the tokens of their bytes.
    fn spell_markers(&self, begin: usize, ids: &mut Vec<u32>) {
        // The unknown token stands for bytes that the vocabulary lacks; it has no other spelling.
        let spelled = |id: u32| self.is_marker(id) && !self.byte_tokens.contains(&id);
        if !ids[begin..].iter().any(|&id| spelled(id)) {
            return;
        }
        let merged = ids.split_off(begin);
        for id in merged {
            if spelled(id) {
                let bytes = self.vocab.tokens.get(id as usize);
                ids.extend(bytes.iter().map(|&byte| self.byte_tokens[byte as usize]));
            } else {
                ids.push(id);
            }
        }
    }
}

/// Whether token `id` of a vocabulary structures a conversation.
pub(super) fn is_marker(vocab: &Vocab, id: usize) -> bool {
    match vocab.types.get(id) {
        Some(TokenType::Control | TokenType::Unknown) => true,
        Some(TokenType::UserDefined) => {
            let text = vocab.tokens.get(id);
            let pipes = text.starts_with(b"<|") || text.ends_with(b"|>");
            let media = text.starts_with(b"<start_of_") || text.starts_with(b"<end_of_");
            pipes || media || text == b"[multimodal]"
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::vocab;
    use super::*;

    /// A vocabulary with control tokens, user-defined markers, a harmless user-defined token and letters.
    fn tokenizer() -> Tokenizer {
        let mut tokens = vec![
            ("<unk>", TokenType::Unknown, 0.0),
            ("<|turn>", TokenType::Control, 0.0),
            ("<|tool_call>", TokenType::UserDefined, 0.0),
            ("<start_of_image>", TokenType::UserDefined, 0.0),
            ("<b>", TokenType::UserDefined, 0.0),
            // Steps by which merging comes to a marker.
            ("<s", TokenType::Normal, 9.0),
            ("<start", TokenType::Normal, 9.0),
        ];
        let letters =
            ["<", "|", ">", "_", "a", "c", "e", "f", "g", "i", "l", "m", "n", "o", "r", "s", "t", "u"];
        tokens.extend(letters.map(|letter| (letter, TokenType::Normal, 1.0)));
        Tokenizer::new(vocab(tokens, &[])).unwrap()
    }

    #[test]
    fn markers_count_in_a_template_and_nowhere_else() {
        let tokenizer = tokenizer();
        let ids = |text, origin| tokenizer.encode_segments([(text, origin)]);
        for (marker, id) in [("<|turn>", 1), ("<|tool_call>", 2), ("<start_of_image>", 3)] {
            assert_eq!(ids(marker, Origin::Template), [id]);
            assert!(ids(marker, Origin::User).iter().all(|&id| id == 0 || !tokenizer.is_marker(id)));
        }
        assert_eq!(ids("<b>", Origin::User), [4]);
    }

    #[test]
    fn a_marker_in_two_origins_is_none() {
        let ids = tokenizer().encode_segments([("<|tu", Origin::Template), ("rn>", Origin::User)]);
        assert!(!ids.contains(&1));
    }

    proptest! {
        #[test]
        fn no_text_of_a_user_becomes_a_marker(text in r"(<\|turn>|<\|tool_call>|<start_of_image>|<|>|\||[a-u_]){0,12}") {
            let tokenizer = tokenizer();
            let ids = tokenizer.encode_segments([(text.as_str(), Origin::User)]);
            prop_assert!(ids.iter().all(|&id| id == 0 || !tokenizer.is_marker(id)), "{ids:?}");
        }
    }
}
