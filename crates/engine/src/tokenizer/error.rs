//! What can go wrong with a vocabulary or a token id.

/// Why a vocabulary was refused, or a token id could not be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file's metadata lacks a key of the tokenizer, or has it with another type.
    #[error("reading the tokenizer: {0}")]
    Metadata(#[from] lapidary_gguf::GgufError),
    /// A list in the metadata has elements of the wrong type.
    #[error("reading the tokenizer: {key} should be {expected}")]
    WrongType {
        /// Full name of the key.
        key: &'static str,
        /// What the key should hold.
        expected: &'static str,
    },
    /// A kind of tokenizer this engine does not have.
    #[error(
        "reading the tokenizer: tokenizer.ggml.model is {found:?}, expected \"llama\" (Gemma 3) or \"gemma4\""
    )]
    UnsupportedModel {
        /// The value found.
        found: String,
    },
    /// The file asks for a space before every text, which Gemma's tokenizers do not put there.
    #[error(
        "reading the tokenizer: tokenizer.ggml.add_space_prefix is true, which no Gemma tokenizer does; \
         convert the model again"
    )]
    SpacePrefix,
    /// The vocabulary holds no tokens.
    #[error("reading the tokenizer: the vocabulary is empty")]
    Empty,
    /// A list is longer than ids can count.
    #[error("reading the tokenizer: {key} has {found} entries, more than a 32-bit id can count")]
    TooMany {
        /// Full name of the key.
        key: &'static str,
        /// Number of entries.
        found: usize,
    },
    /// Two lists that describe the same tokens differ in length.
    #[error("reading the tokenizer: {key} has {found} entries for {expected} tokens")]
    LengthMismatch {
        /// Full name of the key of the list that does not fit.
        key: &'static str,
        /// Its length.
        found: usize,
        /// Number of tokens.
        expected: usize,
    },
    /// A token's type is not one of the format's.
    #[error("reading the tokenizer: token {id} has type {found}, expected 1 to 6")]
    BadType {
        /// The token.
        id: usize,
        /// The number found.
        found: i64,
    },
    /// A token's score is not a number.
    #[error("reading the tokenizer: the score of token {id} is not a number")]
    BadScore {
        /// The token.
        id: usize,
    },
    /// A token of type byte is not written `<0xNN>`.
    #[error(
        "reading the tokenizer: token {id} is a byte token but reads {text:?}, expected \"<0x00>\" to \"<0xFF>\""
    )]
    BadByteToken {
        /// The token.
        id: usize,
        /// Its text, shortened.
        text: String,
    },
    /// A token that is matched as a whole is too long for that.
    #[error(
        "reading the tokenizer: control or user-defined token {id} has {found} bytes, the longest accepted has {limit}"
    )]
    SpecialTooLong {
        /// The token.
        id: usize,
        /// Its length in bytes.
        found: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A merge rule is not two texts with a space between them.
    #[error("reading the tokenizer: merge {rank} reads {text:?}, expected two parts separated by a space")]
    BadMerge {
        /// The place of the merge in the list.
        rank: usize,
        /// Its text, shortened.
        text: String,
    },
    /// Some texts could not be expressed in tokens.
    #[error(
        "reading the tokenizer: no token <0x{byte:02X}> and no unknown token, so that text with this byte could not be encoded"
    )]
    NoFallback {
        /// The first byte that has no token.
        byte: u8,
    },
    /// A metadata key names a token that does not exist.
    #[error("reading the tokenizer: {key} is {found}, but the vocabulary has {n_tokens} tokens")]
    BadSpecialId {
        /// Full name of the key.
        key: &'static str,
        /// The id found.
        found: u32,
        /// Number of tokens.
        n_tokens: usize,
    },
    /// A token id to decode is outside the vocabulary.
    #[error("decoding: token {id} is outside the vocabulary of {n_tokens} tokens")]
    UnknownId {
        /// The id.
        id: u32,
        /// Number of tokens.
        n_tokens: usize,
    },
}

/// Text for an error message: at most 40 characters, whatever a file holds.
pub(super) fn shorten(text: &[u8]) -> String {
    let start = &text[..text.len().min(160)];
    let lossy = String::from_utf8_lossy(start);
    let mut short: String = lossy.chars().take(40).collect();
    if short.len() < lossy.len() || start.len() < text.len() {
        short.push('…');
    }
    short
}
