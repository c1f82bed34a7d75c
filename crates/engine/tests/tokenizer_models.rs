//! The tokenizers of the real models against recorded results of llama.cpp.
//!
//! `data/gemma3-270m` and `data/gemma4-vocab/tokenize.json` were recorded with llama-server and the C interface of
//! llama.cpp 0c1e570; `cases.inp` and `cases.out` are llama.cpp's own test cases.

mod support;

use std::time::{Duration, Instant};

use lapidary_engine::tokenizer::{DecodeOptions, EncodeOptions, StreamDecoder, TokenType, Tokenizer};
use serde_json::Value;
use sha2::{Digest, Sha256};
use support::{GEMMA3, GEMMA4_VOCAB, ModelFile};

const PLAIN: EncodeOptions = EncodeOptions { add_bos: true, parse_special: false };
const SPECIAL: EncodeOptions = EncodeOptions { add_bos: true, parse_special: true };
const RENDERED: DecodeOptions = DecodeOptions { render_special: true };

/// Markers that llama.cpp finds in plain text too, where this engine keeps them out of a user's message.
const GEMMA4_MARKERS: [&str; 7] = [
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|channel>",
    "<channel|>",
    "<|\"|>",
];

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("fixtures are valid JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("a list of ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn bytes_of_hex(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("two digits")).collect()
}

/// Streams `ids` through a decoder and returns all its text.
fn stream(tokenizer: &Tokenizer, ids: &[u32], options: DecodeOptions) -> String {
    let mut decoder = StreamDecoder::new(tokenizer, options);
    let mut text: String = ids.iter().map(|&id| decoder.push(id).expect("a known id")).collect();
    text += &decoder.finish();
    text
}

fn check_encoded(tokenizer: &Tokenizer, text: impl AsRef<[u8]>, options: EncodeOptions, expected: &[u32]) {
    let text = text.as_ref();
    assert_eq!(
        tokenizer.encode(text, options),
        expected,
        "{:?}, {options:?}",
        text.escape_ascii().to_string()
    );
}

#[test]
fn gemma3_encodes_and_decodes_as_llama_cpp() {
    let Some(tokenizer) = GEMMA3.tokenizer() else { return };
    let cases = json(include_str!("data/gemma3-270m/tokenize.json"));
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 63);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let plain = ids(&case["plain"]);
        check_encoded(&tokenizer, text, SPECIAL, &ids(&case["parse_special"]));
        check_encoded(&tokenizer, text, PLAIN, &plain);
        assert_eq!(tokenizer.decode(&plain, RENDERED).unwrap(), case["detokenized"].as_str().unwrap());
        assert_eq!(stream(&tokenizer, &plain, RENDERED), case["detokenized"].as_str().unwrap());
    }
}

#[test]
fn gemma4_encodes_and_decodes_as_llama_cpp() {
    let Some(tokenizer) = GEMMA4_VOCAB.tokenizer() else { return };
    let cases = json(include_str!("data/gemma4-vocab/tokenize.json"));
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 84);
    let mut compared_plain = 0;
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let plain = ids(&case["plain"]);
        check_encoded(&tokenizer, text, SPECIAL, &ids(&case["parse_special"]));
        if !GEMMA4_MARKERS.iter().any(|marker| text.contains(marker)) {
            check_encoded(&tokenizer, text, PLAIN, &plain);
            compared_plain += 1;
        }
        let (bos, rest) = plain.split_first().unwrap();
        assert_eq!(*bos, 2);
        assert_eq!(tokenizer.decode(rest, RENDERED).unwrap(), case["detokenized"].as_str().unwrap());
        assert_eq!(stream(&tokenizer, rest, RENDERED), case["detokenized"].as_str().unwrap());
    }
    assert_eq!(compared_plain, 80);
}

#[test]
fn gemma4_passes_llama_cpps_own_cases() {
    let Some(tokenizer) = GEMMA4_VOCAB.tokenizer() else { return };
    let texts: Vec<_> =
        include_str!("data/gemma4-vocab/cases.inp").split("\n__ggml_vocab_test__\n").collect();
    let lines: Vec<_> = include_str!("data/gemma4-vocab/cases.out").lines().collect();
    assert_eq!((texts.len(), lines.len()), (46, 46));
    for (text, line) in texts.iter().zip(lines) {
        let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
        check_encoded(&tokenizer, text, EncodeOptions { add_bos: false, parse_special: false }, &expected);
    }
}

fn check_invalid_utf8(file: &ModelFile, ids_field: &str, text_field: &str) {
    let Some(tokenizer) = file.tokenizer() else { return };
    let cases = json(include_str!("data/gemma3-270m/tokenize-bytes.json"));
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 12);
    for case in cases {
        let expected = ids(&case[ids_field]);
        check_encoded(&tokenizer, bytes_of_hex(&case["hex"]), PLAIN, &expected);
        let decoded = tokenizer.decode_bytes(&expected, DecodeOptions::default()).unwrap();
        assert_eq!(decoded, bytes_of_hex(&case[text_field]), "{}", case["hex"]);
        let streamed = stream(&tokenizer, &expected, DecodeOptions::default());
        assert_eq!(streamed, String::from_utf8_lossy(&decoded));
    }
}

#[test]
fn gemma3_turns_invalid_utf8_into_byte_tokens() {
    check_invalid_utf8(&GEMMA3, "gemma3", "gemma3_detok_hex");
}

#[test]
fn gemma4_turns_invalid_utf8_into_replacement_characters() {
    check_invalid_utf8(&GEMMA4_VOCAB, "gemma4", "gemma4_detok_hex");
}

fn check_pieces(file: &ModelFile, field: &str) {
    let Some(tokenizer) = file.tokenizer() else { return };
    let expected = json(include_str!("data/gemma3-270m/pieces-sha256.json"));
    let mut hash = Sha256::new();
    for id in 0..tokenizer.n_tokens() as u32 {
        let piece = tokenizer.piece(id).unwrap();
        hash.update((piece.len() as u32).to_le_bytes());
        hash.update(&piece);
    }
    let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, expected[field].as_str().unwrap());
}

#[test]
fn gemma3_has_the_pieces_of_llama_cpp() {
    check_pieces(&GEMMA3, "gemma3_270m");
}

#[test]
fn gemma4_has_the_pieces_of_llama_cpp() {
    check_pieces(&GEMMA4_VOCAB, "gemma4_26b");
}

#[test]
fn gemma3_ends_generation_at_the_end_of_text_and_turn() {
    let Some(tokenizer) = GEMMA3.tokenizer() else { return };
    assert_eq!(tokenizer.end_of_generation(), [1, 106]);
    assert_eq!(tokenizer.token_id("<start_of_turn>"), Some(105));
    assert!(!tokenizer.is_end_of_generation(tokenizer.token_id("</s>").unwrap()));
    assert_eq!(tokenizer.special_ids().bos, Some(2));
}

#[test]
fn gemma4_ends_generation_at_tool_responses_too() {
    let Some(tokenizer) = GEMMA4_VOCAB.tokenizer() else { return };
    assert_eq!(tokenizer.end_of_generation(), [1, 50, 106]);
    assert_eq!(tokenizer.token_id("<|channel>"), Some(100));
    assert!(!tokenizer.is_end_of_generation(tokenizer.token_id("</s>").unwrap()));
    assert!(tokenizer.adds_bos());
}

/// No text may smuggle in a marker: not by its name, not by the names of byte tokens, not joined from parts.
fn check_plain_text_stays_plain(file: &ModelFile, allowed_user_defined: bool) {
    let Some(tokenizer) = file.tokenizer() else { return };
    for id in 0..tokenizer.n_tokens() as u32 {
        let harmful = match tokenizer.token_type(id).unwrap() {
            TokenType::Normal | TokenType::Unused => continue,
            TokenType::UserDefined => !allowed_user_defined,
            TokenType::Unknown | TokenType::Control | TokenType::Byte => true,
        };
        if harmful {
            let name = tokenizer.vocab().tokens.get(id as usize).to_vec();
            let ids = tokenizer.encode(&name, EncodeOptions { add_bos: false, parse_special: false });
            assert!(!ids.contains(&id), "token {id}");
            assert_eq!(tokenizer.decode_bytes(&ids, DecodeOptions::default()).unwrap(), name);
        }
    }
}

#[test]
fn gemma3_plain_text_never_spells_a_control_token() {
    check_plain_text_stays_plain(&GEMMA3, true);
}

#[test]
fn gemma4_plain_text_never_spells_a_control_or_tool_token() {
    check_plain_text_stays_plain(&GEMMA4_VOCAB, false);
}

/// Texts of 100 kB that would take forever if merging took quadratic time.
fn check_long_texts(file: &ModelFile) {
    let Some(tokenizer) = file.tokenizer() else { return };
    for unit in ["a", " ", "\n", "\t", "😀", "<", "é", "▁", "ab", "<|turn>", "the quick brown fox ", "<0x0A>"]
    {
        let text = unit.repeat(100_000 / unit.len());
        for options in [PLAIN, SPECIAL] {
            let start = Instant::now();
            let ids = tokenizer.encode(&text, options);
            // Linear time takes a twentieth of a second, quadratic time at least ten seconds.
            assert!(start.elapsed() < Duration::from_secs(2), "{unit:?} took {:?}", start.elapsed());
            let expected = text.replace('▁', " ");
            assert_eq!(tokenizer.decode(&ids[1..], RENDERED).unwrap(), expected, "{unit:?}");
        }
    }
}

#[test]
fn gemma3_encodes_long_texts_without_a_line_break() {
    check_long_texts(&GEMMA3);
}

#[test]
fn gemma4_encodes_long_texts_without_a_line_break() {
    check_long_texts(&GEMMA4_VOCAB);
}

#[test]
fn ids_outside_the_vocabulary_are_errors() {
    let Some(tokenizer) = GEMMA4_VOCAB.tokenizer() else { return };
    for id in [262_144, u32::MAX] {
        let error = tokenizer.decode(&[2, id], RENDERED).unwrap_err().to_string();
        assert_eq!(error, format!("decoding: token {id} is outside the vocabulary of 262144 tokens"));
        assert!(tokenizer.piece(id).is_err());
        assert!(!tokenizer.is_end_of_generation(id));
    }
}
