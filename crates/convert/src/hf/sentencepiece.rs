//! `tokenizer.model`: a SentencePiece model, of which only the pieces are read.
//!
//! The file is a protocol buffer; field 1 of the message holds the pieces, each with text (1), score (2) and type (3).
//! Source: `sentencepiece_model.proto` of SentencePiece.

use std::path::Path;

use super::tokenizer::{Token, TokenKind};
use crate::error::{ConvertError, Result};

/// Reads the pieces in the order of their ids.
///
/// # Errors
/// When the file cannot be read or is no SentencePiece model.
pub fn read(path: &Path) -> Result<Vec<Token>> {
    let bytes = std::fs::read(path).map_err(ConvertError::read(path))?;
    parse(&bytes).map_err(|problem| ConvertError::file(path, format!("{problem}: not a SentencePiece model")))
}

fn parse(bytes: &[u8]) -> Result<Vec<Token>, String> {
    const PIECES: u64 = 1;
    let mut message = Message { bytes };
    let mut tokens = Vec::new();
    while let Some((field, value)) = message.next()? {
        if let (PIECES, Field::Bytes(piece)) = (field, value) {
            tokens.push(parse_piece(piece).map_err(|p| format!("piece {}: {p}", tokens.len()))?);
        }
    }
    if tokens.is_empty() { Err("it holds no pieces".into()) } else { Ok(tokens) }
}

fn parse_piece(bytes: &[u8]) -> Result<Token, String> {
    let mut token = Token { text: String::new(), score: 0.0, kind: TokenKind::Normal };
    let mut message = Message { bytes };
    while let Some((field, value)) = message.next()? {
        match (field, value) {
            (1, Field::Bytes(text)) => {
                token.text = String::from_utf8(text.to_vec()).map_err(|_| "its text is not UTF-8")?;
            }
            (2, Field::Fixed32(bits)) => token.score = f32::from_bits(bits),
            (3, Field::Varint(kind)) => token.kind = kind_of(kind)?,
            _ => {}
        }
    }
    Ok(token)
}

fn kind_of(number: u64) -> Result<TokenKind, String> {
    Ok(match number {
        1 => TokenKind::Normal,
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        // The converter makes these user-defined only where the tokenizer's settings list them.
        4 => TokenKind::Normal,
        5 => TokenKind::Unused,
        6 => TokenKind::Byte,
        other => return Err(format!("type {other} is not known")),
    })
}

/// The fields of a protocol buffer message, one after the other.
struct Message<'a> {
    bytes: &'a [u8],
}

enum Field<'a> {
    Varint(u64),
    Fixed32(u32),
    Fixed64,
    Bytes(&'a [u8]),
}

impl<'a> Message<'a> {
    fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, String> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Field::Varint(self.varint()?),
            1 => self.take(8).map(|_| Field::Fixed64)?,
            2 => {
                let len = usize::try_from(self.varint()?).map_err(|_| "a length is too large")?;
                Field::Bytes(self.take(len)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes"))),
            other => return Err(format!("wire type {other} is not known")),
        };
        Ok(Some((key >> 3, value)))
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number is too long".into())
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (head, tail) = self.bytes.split_at_checked(len).ok_or("it ends in the middle of a field")?;
        self.bytes = tail;
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A piece as the proto compiler encodes it.
    fn piece(text: &str, score: f32, kind: Option<u8>) -> Vec<u8> {
        let mut inner = vec![0x0a, text.len() as u8];
        inner.extend(text.as_bytes());
        inner.push(0x15);
        inner.extend(score.to_le_bytes());
        if let Some(kind) = kind {
            inner.extend([0x18, kind]);
        }
        let mut out = vec![0x0a, inner.len() as u8];
        out.extend(inner);
        out
    }

    #[test]
    fn pieces_keep_order_score_and_type() {
        let mut bytes = piece("<unk>", 0.0, Some(2));
        bytes.extend(piece("\u{2581}a", -1.5, None));
        bytes.extend([0x12, 2, 0x08, 1]);
        bytes.extend(piece("<0x0A>", 0.0, Some(6)));
        let tokens = parse(&bytes).expect("a model");
        let token = |text: &str, score, kind| Token { text: text.into(), score, kind };
        let expected = [
            token("<unk>", 0.0, TokenKind::Unknown),
            token("\u{2581}a", -1.5, TokenKind::Normal),
            token("<0x0A>", 0.0, TokenKind::Byte),
        ];
        assert_eq!(tokens, expected);
    }

    #[test]
    fn a_truncated_model_is_an_error() {
        let bytes = piece("<unk>", 0.0, Some(2));
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            let _ = parse(&bytes);
        }
    }
}
