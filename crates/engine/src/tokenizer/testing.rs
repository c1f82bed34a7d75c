//! Small vocabularies for unit tests.

use super::vocab::{SpecialIds, TokenType, Vocab, VocabModel};

/// A vocabulary of tokens with their types and scores, and of merges; with merges it is of Gemma 4's kind.
pub(super) fn vocab<'a>(
    tokens: impl IntoIterator<Item = (&'a str, TokenType, f32)>,
    merges: &[&str],
) -> Vocab {
    let tokens: Vec<_> = tokens.into_iter().collect();
    Vocab {
        model: if merges.is_empty() { VocabModel::SentencePiece } else { VocabModel::Gemma4 },
        tokens: tokens.iter().map(|(text, _, _)| text).collect(),
        types: tokens.iter().map(|(_, ty, _)| *ty).collect(),
        scores: tokens.iter().map(|(_, _, score)| *score).collect(),
        merges: merges.iter().collect(),
        special: SpecialIds::default(),
        add_bos: true,
        suppressed: Vec::new(),
    }
}
