//! Token ids to text, at once or as they come.

use std::borrow::{Borrow, Cow};

use super::Tokenizer;
use super::chars::unescape_spaces;
use super::error::TokenizerError;
use super::vocab::{TokenType, parse_byte_token};

/// How tokens are decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Write control and unknown tokens out (`<bos>`, `<|turn>`) instead of leaving them out. User-defined tokens,
    /// Gemma 4's tool and channel markers among them, are always written out.
    pub render_special: bool,
}

impl Tokenizer {
    /// The bytes that token `id` stands for: its text with spaces as spaces, or the byte of a byte token.
    ///
    /// Control tokens give their name, such as `<bos>`. Characters may be split over several tokens.
    ///
    /// # Errors
    /// When there is no token `id`.
    pub fn piece(&self, id: u32) -> Result<Cow<'_, [u8]>, TokenizerError> {
        let ty = self.token_type(id)?;
        let text = self.vocab.tokens.get(id as usize);
        Ok(match ty {
            TokenType::Normal | TokenType::Unused => unescape_spaces(text),
            TokenType::Unknown | TokenType::Control | TokenType::UserDefined => text.into(),
            TokenType::Byte => parse_byte_token(text).into_iter().collect(),
        })
    }

    /// The bytes of all tokens of `ids` in a row.
    ///
    /// # Errors
    /// When an id is not in the vocabulary.
    pub fn decode_bytes(&self, ids: &[u32], options: DecodeOptions) -> Result<Vec<u8>, TokenizerError> {
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(&self.visible_piece(id, options)?);
        }
        Ok(bytes)
    }

    /// The text of `ids`. What is not valid UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// When an id is not in the vocabulary.
    pub fn decode(&self, ids: &[u32], options: DecodeOptions) -> Result<String, TokenizerError> {
        let bytes = self.decode_bytes(ids, options)?;
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    fn visible_piece(&self, id: u32, options: DecodeOptions) -> Result<Cow<'_, [u8]>, TokenizerError> {
        match self.token_type(id)? {
            TokenType::Unknown | TokenType::Control if !options.render_special => Ok(Cow::default()),
            _ => self.piece(id),
        }
    }
}

/// Decodes tokens one by one and never hands out half a character.
///
/// `T` is a reference to a [`Tokenizer`] or an `Arc` of one. All the text handed out, [`finish`](Self::finish)
/// included, equals [`Tokenizer::decode`] of all the ids.
#[derive(Debug)]
pub struct StreamDecoder<T> {
    tokenizer: T,
    options: DecodeOptions,
    /// The beginning of a character whose other bytes are yet to come: at most three bytes.
    tail: Vec<u8>,
}

impl<T: Borrow<Tokenizer>> StreamDecoder<T> {
    /// A decoder at the start of a text.
    pub fn new(tokenizer: T, options: DecodeOptions) -> Self {
        Self { tokenizer, options, tail: Vec::new() }
    }

    /// The text that is certain once `id` has come: empty while a character is incomplete.
    ///
    /// # Errors
    /// When there is no token `id`; the decoder is then as it was.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        let piece = self.tokenizer.borrow().visible_piece(id, self.options)?;
        self.tail.extend_from_slice(&piece);
        let certain = self.tail.len() - incomplete_tail(&self.tail);
        let text = String::from_utf8_lossy(&self.tail[..certain]).into_owned();
        self.tail.drain(..certain);
        Ok(text)
    }

    /// The rest of the text: U+FFFD if the last character never became complete, else nothing.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.tail).into_owned();
        self.tail.clear();
        text
    }
}

/// Length of the incomplete character at the end of `bytes`.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let last_chunk = bytes.utf8_chunks().last();
    let invalid = last_chunk.map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(invalid) {
        Err(error) if error.error_len().is_none() => invalid.len(),
        _ => 0,
    }
}
