//! Characters of text that may not be valid UTF-8.

use std::borrow::Cow;

/// How Gemma vocabularies write a space.
pub(super) const SPACE: &[u8] = "\u{2581}".as_bytes();

const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// Length of the character that begins with `first`, by its upper bits alone. Bytes that cannot begin one count
/// as a character each.
pub(super) fn length_from_first_byte(first: u8) -> usize {
    match first {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xff => 4,
        _ => 1,
    }
}

/// `text` with spaces written as the vocabulary writes them.
pub(super) fn escape_spaces(text: &[u8]) -> Cow<'_, [u8]> {
    replace(text, b" ", SPACE)
}

/// `text` with spaces written as spaces again.
pub(super) fn unescape_spaces(text: &[u8]) -> Cow<'_, [u8]> {
    replace(text, SPACE, b" ")
}

fn replace<'a>(text: &'a [u8], from: &[u8], to: &[u8]) -> Cow<'a, [u8]> {
    let mut result = Vec::new();
    let mut copied = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with(from) {
            result.extend_from_slice(&text[copied..at]);
            result.extend_from_slice(to);
            at += from.len();
            copied = at;
        } else {
            at += 1;
        }
    }
    if copied == 0 {
        return text.into();
    }
    result.extend_from_slice(&text[copied..]);
    result.into()
}

/// `text` with each byte that belongs to no character replaced by U+FFFD.
///
/// Encoded surrogates stay, as in llama.cpp; overlong forms are taken for the invalid bytes they are.
pub(super) fn replace_invalid(text: &[u8]) -> Cow<'_, [u8]> {
    if std::str::from_utf8(text).is_ok() {
        return text.into();
    }
    let mut result = Vec::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (character, len) = match character_length(rest) {
            Some(len) => (&rest[..len], len),
            None => (REPLACEMENT, 1),
        };
        result.extend_from_slice(character);
        rest = &rest[len..];
    }
    result.into()
}

/// Length of the character `text` begins with, or `None` when it begins with none.
fn character_length(text: &[u8]) -> Option<usize> {
    let second_allowed = match text[0] {
        0..=0x7f => return Some(1),
        0xe0 => 0xa0..=0xbf,
        0xf0 => 0x90..=0xbf,
        0xf4 => 0x80..=0x8f,
        0xc2..=0xdf | 0xe1..=0xef | 0xf1..=0xf3 => 0x80..=0xbf,
        _ => return None,
    };
    let len = length_from_first_byte(text[0]);
    let (second, others) = text.get(1..len)?.split_first()?;
    let valid = second_allowed.contains(second) && others.iter().all(|byte| (0x80..=0xbf).contains(byte));
    valid.then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_invalid_byte_is_replaced() {
        for (bytes, expected) in [
            (&b"a\x80b"[..], "a\u{fffd}b".as_bytes()),
            (b"\xf0\x9f", "\u{fffd}\u{fffd}".as_bytes()),
            (b"\xc3(", "\u{fffd}(".as_bytes()),
            (b"\xc0\x80", "\u{fffd}\u{fffd}".as_bytes()),
            (b"\xe0\x80\x80", "\u{fffd}\u{fffd}\u{fffd}".as_bytes()),
            (b"\xf4\x90\x80\x80", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}".as_bytes()),
            (b"\xed\xa0\x80\xff", b"\xed\xa0\x80\xef\xbf\xbd"),
        ] {
            assert_eq!(replace_invalid(bytes), expected, "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn valid_text_is_left_alone(text: String) {
            prop_assert!(matches!(replace_invalid(text.as_bytes()), Cow::Borrowed(_)));
            // The same through the slow path, which an invalid byte at the end forces.
            let broken = [text.as_bytes(), b"\xff"].concat();
            prop_assert_eq!(replace_invalid(&broken), [text.as_bytes(), REPLACEMENT].concat());
        }

        #[test]
        fn spaces_are_replaced_like_in_strings(text in "[ a\u{2581}é]{0,12}") {
            let escaped = text.replace(' ', "\u{2581}");
            prop_assert_eq!(&*escape_spaces(text.as_bytes()), escaped.as_bytes());
            let unescaped = text.replace('\u{2581}', " ");
            prop_assert_eq!(&*unescape_spaces(text.as_bytes()), unescaped.as_bytes());
        }
    }
}
