//! A vocabulary as plain data: what a file says, before anything is built from it.

use lapidary_gguf::Strings;

use super::error::{TokenizerError, shorten};

/// How text is split into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VocabModel {
    /// SentencePiece byte-pair encoding: the neighbours whose joined text has the highest score merge first.
    /// `tokenizer.ggml.model = llama`; Gemma 3.
    SentencePiece,
    /// Byte-pair encoding by a list of merges over UTF-8 text. `tokenizer.ggml.model = gemma4`.
    Gemma4,
}

/// The kind of a token. Discriminants are the numbers of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TokenType {
    /// A piece of text.
    Normal = 1,
    /// The token for what no other can express.
    Unknown = 2,
    /// A marker such as `<bos>`, which never comes from plain text.
    Control = 3,
    /// A text that is always one token. In Gemma 4 these are tool and channel markers, kept out of plain text too.
    UserDefined = 4,
    /// A piece that training did not use.
    Unused = 5,
    /// One byte, written `<0xNN>`, for text without a token of its own.
    Byte = 6,
}

impl TokenType {
    /// The type with this number in `tokenizer.ggml.token_type`.
    pub fn from_number(number: i64) -> Option<Self> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// What is known of a vocabulary: the lists of a file, not yet indexed or checked against each other.
#[derive(Clone, Debug)]
pub struct Vocab {
    /// How text is split into tokens.
    pub model: VocabModel,
    /// The text of every token; its place in the list is its id. Spaces are written U+2581.
    pub tokens: Pieces,
    /// The type of every token.
    pub types: Vec<TokenType>,
    /// The score of every token; only [`VocabModel::SentencePiece`] needs them.
    pub scores: Vec<f32>,
    /// Pairs of neighbours to join, most urgent first, written `left right`; only [`VocabModel::Gemma4`] needs them.
    pub merges: Pieces,
    /// Tokens with a function.
    pub special: SpecialIds,
    /// Whether prompts usually begin with [`SpecialIds::bos`].
    pub add_bos: bool,
    /// Tokens that must never be sampled, such as those for images in a model that writes text only.
    pub suppressed: Vec<u32>,
}

/// The ids that metadata names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Begin of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of a turn.
    pub eot: Option<u32>,
    /// Stands for text without a token.
    pub unknown: Option<u32>,
    /// Fills up batches.
    pub padding: Option<u32>,
}

impl SpecialIds {
    pub(super) const BOS_KEY: &str = "tokenizer.ggml.bos_token_id";
    pub(super) const EOS_KEY: &str = "tokenizer.ggml.eos_token_id";
    pub(super) const EOT_KEY: &str = "tokenizer.ggml.eot_token_id";
    pub(super) const UNKNOWN_KEY: &str = "tokenizer.ggml.unknown_token_id";
    pub(super) const PADDING_KEY: &str = "tokenizer.ggml.padding_token_id";

    fn check(&self, n_tokens: usize) -> Result<(), TokenizerError> {
        for (key, id) in [
            (Self::BOS_KEY, self.bos),
            (Self::EOS_KEY, self.eos),
            (Self::EOT_KEY, self.eot),
            (Self::UNKNOWN_KEY, self.unknown),
            (Self::PADDING_KEY, self.padding),
        ] {
            if let Some(found) = id.filter(|&id| id as usize >= n_tokens) {
                return Err(TokenizerError::BadSpecialId { key, found, n_tokens });
            }
        }
        Ok(())
    }
}

/// A list of byte strings: those of a file, in place, or owned ones.
#[derive(Clone, Debug)]
pub struct Pieces(Storage);

#[derive(Clone, Debug)]
enum Storage {
    File(Strings),
    Owned(Vec<Box<[u8]>>),
}

impl Pieces {
    /// Number of strings.
    pub fn len(&self) -> usize {
        match &self.0 {
            Storage::File(strings) => strings.len(),
            Storage::Owned(strings) => strings.len(),
        }
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The string at `index`.
    ///
    /// # Panics
    /// When `index` is not below [`len`](Self::len).
    pub fn get(&self, index: usize) -> &[u8] {
        match &self.0 {
            Storage::File(strings) => strings.get(index),
            Storage::Owned(strings) => &strings[index],
        }
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i))
    }
}

impl From<Strings> for Pieces {
    fn from(strings: Strings) -> Self {
        Self(Storage::File(strings))
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for Pieces {
    fn from_iter<I: IntoIterator<Item = T>>(strings: I) -> Self {
        Self(Storage::Owned(strings.into_iter().map(|s| s.as_ref().into()).collect()))
    }
}

/// The byte that a token of type [`TokenType::Byte`] stands for, from its text `<0xNN>`.
pub(super) fn parse_byte_token(text: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high, low, b'>'] = *text else { return None };
    let digit = |c: u8| (c as char).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

impl Vocab {
    /// Checks that the lists fit each other and every token is what its type says.
    pub(super) fn check(&self) -> Result<(), TokenizerError> {
        let n_tokens = self.tokens.len();
        if n_tokens == 0 {
            return Err(TokenizerError::Empty);
        }
        for (key, found) in
            [("tokenizer.ggml.tokens", n_tokens), ("tokenizer.ggml.merges", self.merges.len())]
        {
            if found >= u32::MAX as usize {
                return Err(TokenizerError::TooMany { key, found });
            }
        }
        self.check_types()?;
        if self.model == VocabModel::SentencePiece {
            self.check_scores()?;
        }
        self.special.check(n_tokens)
    }

    fn check_types(&self) -> Result<(), TokenizerError> {
        check_length("tokenizer.ggml.token_type", self.types.len(), self.tokens.len())?;
        for (id, ty) in self.types.iter().enumerate() {
            let text = || self.tokens.get(id);
            if *ty == TokenType::Byte && parse_byte_token(text()).is_none() {
                return Err(TokenizerError::BadByteToken { id, text: shorten(text()) });
            }
        }
        Ok(())
    }

    fn check_scores(&self) -> Result<(), TokenizerError> {
        check_length("tokenizer.ggml.scores", self.scores.len(), self.tokens.len())?;
        match self.scores.iter().position(|score| score.is_nan()) {
            Some(id) => Err(TokenizerError::BadScore { id }),
            None => Ok(()),
        }
    }
}

fn check_length(key: &'static str, found: usize, expected: usize) -> Result<(), TokenizerError> {
    if found == expected { Ok(()) } else { Err(TokenizerError::LengthMismatch { key, found, expected }) }
}
