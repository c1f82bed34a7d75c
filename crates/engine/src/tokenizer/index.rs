//! Looking up tokens and merges by their text.

use super::error::{TokenizerError, shorten};
use super::fingerprint::{Fingerprint, Fingerprinter, Table};
use super::merge::Part;
use super::vocab::{Pieces, TokenType, Vocab, VocabModel};

/// Finds the tokens that plain text can become.
///
/// Control, unknown and byte tokens are left out, so that no text spells them by accident or by intent; neither
/// does Gemma 4's text spell the user-defined ones. Of tokens with the same text the one with the lowest id counts.
#[derive(Debug)]
pub(super) struct TokenIndex {
    hasher: Fingerprinter,
    table: Table,
}

/// Whether plain text may become a token of this type.
pub(super) fn is_plain(model: VocabModel, ty: TokenType) -> bool {
    match ty {
        TokenType::Normal | TokenType::Unused => true,
        TokenType::UserDefined => model == VocabModel::SentencePiece,
        TokenType::Unknown | TokenType::Control | TokenType::Byte => false,
    }
}

impl TokenIndex {
    pub fn new(hasher: Fingerprinter, vocab: &Vocab) -> Self {
        let text = |id: u32| vocab.tokens.get(id as usize);
        let is_findable =
            |id: &u32| !text(*id).is_empty() && is_plain(vocab.model, vocab.types[*id as usize]);
        let ids: Vec<u32> = (0..vocab.tokens.len() as u32).filter(is_findable).collect();
        let hashed = ids.into_iter().map(|id| (id, hasher.hash(text(id))));
        let table = Table::new(hashed, |id, other| text(id) == text(other));
        Self { hasher, table }
    }

    /// The token whose text is `text`.
    pub fn find(&self, tokens: &Pieces, text: &[u8]) -> Option<u32> {
        self.table.get(self.hasher.hash(text), |id| tokens.get(id as usize) == text)
    }

    /// The token whose text is that of `part`.
    pub fn find_part(&self, tokens: &Pieces, part: Part) -> Option<u32> {
        self.table.get(part.fingerprint.hash(), |id| tokens.get(id as usize) == part.text)
    }

    /// The token whose text is that of `left` and `right` joined.
    pub fn find_joined(&self, tokens: &Pieces, left: Part, right: Part) -> Option<u32> {
        let hash = left.fingerprint.joined_hash(right.fingerprint);
        self.table.get(hash, |id| tokens.get(id as usize).strip_prefix(left.text) == Some(right.text))
    }
}

/// Finds the rank of the merge of two neighbours.
#[derive(Debug)]
pub(super) struct MergeIndex {
    table: Table,
    separator: Fingerprint,
}

impl MergeIndex {
    /// Indexes every merge under the hash of its whole line, the separating space included.
    pub fn new(hasher: Fingerprinter, merges: &Pieces) -> Result<Self, TokenizerError> {
        let line = |rank: u32| merges.get(rank as usize);
        if let Some(rank) = merges.iter().position(|line| split_merge(line).is_none()) {
            return Err(TokenizerError::BadMerge { rank, text: shorten(merges.get(rank)) });
        }
        let hashed = (0..merges.len() as u32).map(|rank| (rank, hasher.hash(line(rank))));
        let table = Table::new(hashed, |rank, other| line(rank) == line(other));
        Ok(Self { table, separator: hasher.of(b" ") })
    }

    /// The place in the list of the merge of `left` and `right`.
    pub fn rank(&self, merges: &Pieces, left: Part, right: Part) -> Option<u32> {
        let hash = left.fingerprint.join(self.separator).joined_hash(right.fingerprint);
        self.table.get(hash, |rank| split_merge(merges.get(rank as usize)) == Some((left.text, right.text)))
    }
}

/// The two parts of a merge. They are separated by the first space that leaves something on its left.
fn split_merge(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = 1 + line.get(1..)?.iter().position(|&byte| byte == b' ')?;
    let right = &line[space + 1..];
    (!right.is_empty()).then_some((&line[..space], right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_split_at_the_first_space_after_the_first_byte() {
        assert_eq!(split_merge(b"a b"), Some((&b"a"[..], &b"b"[..])));
        assert_eq!(split_merge(b"  b"), Some((&b" "[..], &b"b"[..])));
        assert_eq!(split_merge(b"\n\n \n"), Some((&b"\n\n"[..], &b"\n"[..])));
        assert_eq!(split_merge(b"a b c"), Some((&b"a"[..], &b"b c"[..])));
        for bad in [&b""[..], b" ", b"a", b"ab", b" a", b"a "] {
            assert_eq!(split_merge(bad), None);
        }
    }
}
