//! Vocabularies that are damaged, contradictory, or made to be slow.

use std::time::{Duration, Instant};

use lapidary_engine::tokenizer::{
    DecodeOptions, EncodeOptions, SpecialIds, TokenType, Tokenizer, TokenizerError, Vocab, VocabModel,
};
use lapidary_gguf::{Gguf, SharedBytes};
use proptest::prelude::*;

const PLAIN: EncodeOptions = EncodeOptions { add_bos: true, parse_special: false };
const SPECIAL: EncodeOptions = EncodeOptions { add_bos: true, parse_special: true };

/// A metadata value as a GGUF file stores it: the type's number and the bytes.
#[derive(Clone)]
struct Stored(u32, Vec<u8>);

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

fn array(element_type: u32, elements: &[Vec<u8>]) -> Stored {
    let header = [&element_type.to_le_bytes()[..], &(elements.len() as u64).to_le_bytes()];
    Stored(9, [&header.concat()[..], &elements.concat()].concat())
}

fn text(text: &str) -> Stored {
    Stored(8, string(text.as_bytes()))
}

fn texts<T: AsRef<[u8]>>(texts: &[T]) -> Stored {
    array(8, &texts.iter().map(|text| string(text.as_ref())).collect::<Vec<_>>())
}

fn number(number: u32) -> Stored {
    Stored(4, number.to_le_bytes().to_vec())
}

fn boolean(value: bool) -> Stored {
    Stored(7, vec![value.into()])
}

fn numbers(numbers: &[i32]) -> Stored {
    array(5, &numbers.iter().map(|n| n.to_le_bytes().to_vec()).collect::<Vec<_>>())
}

fn floats(numbers: &[f32]) -> Stored {
    array(6, &numbers.iter().map(|n| n.to_le_bytes().to_vec()).collect::<Vec<_>>())
}

type Entries = Vec<(&'static str, Stored)>;

/// A small sound vocabulary: an unknown token (0), a control token (1) and three letters.
fn sound(model: &str) -> Entries {
    let mut entries = vec![
        ("tokenizer.ggml.model", text(model)),
        ("tokenizer.ggml.tokens", texts(&["<unk>", "<bos>", "a", "b", "ab"])),
        ("tokenizer.ggml.token_type", numbers(&[2, 3, 1, 1, 1])),
        ("tokenizer.ggml.bos_token_id", number(1)),
    ];
    match model {
        "gemma4" => entries.push(("tokenizer.ggml.merges", texts(&["a b"]))),
        _ => entries.push(("tokenizer.ggml.scores", floats(&[0.0, 0.0, 0.0, 0.0, 1.0]))),
    }
    entries
}

fn gguf_bytes(entries: &Entries) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend((entries.len() as u64).to_le_bytes());
    for (key, Stored(ty, value)) in entries {
        bytes.extend(string(key.as_bytes()));
        bytes.extend(ty.to_le_bytes());
        bytes.extend(value);
    }
    bytes
}

fn load(entries: &Entries) -> Result<Tokenizer, TokenizerError> {
    let gguf = Gguf::from_bytes(SharedBytes::from(gguf_bytes(entries)), "test").expect("a sound container");
    Tokenizer::from_gguf(&gguf)
}

/// The error when the entry `key` is left out, or put in place of the one there is.
fn error(model: &str, key: &'static str, value: Option<Stored>) -> String {
    let mut entries = sound(model);
    entries.retain(|(k, _)| *k != key);
    entries.extend(value.map(|value| (key, value)));
    load(&entries).expect_err("the vocabulary is unsound").to_string()
}

#[test]
fn sound_vocabularies_load() {
    for model in ["llama", "gemma4"] {
        let tokenizer = load(&sound(model)).unwrap();
        assert_eq!(tokenizer.encode("abba<bos>", SPECIAL), [1, 4, 3, 2, 1]);
        // No byte tokens: the unknown token stands for each byte.
        assert_eq!(tokenizer.encode("é", PLAIN), [1, 0, 0]);
        assert_eq!(tokenizer.decode(&[1, 4, 0], DecodeOptions::default()).unwrap(), "ab");
    }
}

#[test]
fn missing_keys_are_named() {
    for (model, key) in [
        ("llama", "tokenizer.ggml.model"),
        ("llama", "tokenizer.ggml.tokens"),
        ("llama", "tokenizer.ggml.token_type"),
        ("llama", "tokenizer.ggml.scores"),
        ("gemma4", "tokenizer.ggml.merges"),
    ] {
        assert_eq!(
            error(model, key, None),
            format!("reading the tokenizer: the file has no metadata key '{key}'")
        );
    }
    assert!(load(&Entries::new()).is_err());
}

#[test]
fn other_models_are_refused() {
    let message = error("llama", "tokenizer.ggml.model", Some(text("gpt2")));
    assert!(message.contains("\"gpt2\", expected \"llama\" (Gemma 3) or \"gemma4\""), "{message}");
    let message = error("llama", "tokenizer.ggml.add_space_prefix", Some(boolean(true)));
    assert!(message.contains("add_space_prefix is true"), "{message}");
}

#[test]
fn lists_must_fit_each_other() {
    assert_eq!(
        error("llama", "tokenizer.ggml.token_type", Some(numbers(&[1, 1]))),
        "reading the tokenizer: tokenizer.ggml.token_type has 2 entries for 5 tokens"
    );
    assert_eq!(
        error("llama", "tokenizer.ggml.scores", Some(floats(&[0.0; 6]))),
        "reading the tokenizer: tokenizer.ggml.scores has 6 entries for 5 tokens"
    );
    let message = error("llama", "tokenizer.ggml.scores", Some(numbers(&[0; 5])));
    assert_eq!(message, "reading the tokenizer: tokenizer.ggml.scores should be an array of 32-bit floats");
    let message = error("llama", "tokenizer.ggml.token_type", Some(floats(&[1.0; 5])));
    assert_eq!(message, "reading the tokenizer: tokenizer.ggml.token_type should be an array of integers");
    assert!(error("llama", "tokenizer.ggml.tokens", Some(numbers(&[1; 5]))).contains("array of strings"));
    assert!(error("llama", "tokenizer.ggml.tokens", Some(texts(&[""; 0]))).contains("vocabulary is empty"));
}

#[test]
fn bad_tokens_are_named() {
    assert_eq!(
        error("llama", "tokenizer.ggml.token_type", Some(numbers(&[2, 3, 1, 7, 1]))),
        "reading the tokenizer: token 3 has type 7, expected 1 to 6"
    );
    assert!(
        error("llama", "tokenizer.ggml.token_type", Some(numbers(&[2, 3, 1, -1, 1]))).contains("type -1")
    );
    assert_eq!(
        error("llama", "tokenizer.ggml.token_type", Some(numbers(&[2, 3, 6, 1, 1]))),
        "reading the tokenizer: token 2 is a byte token but reads \"a\", expected \"<0x00>\" to \"<0xFF>\""
    );
    assert_eq!(
        error("llama", "tokenizer.ggml.scores", Some(floats(&[0.0, 0.0, f32::NAN, 0.0, 0.0]))),
        "reading the tokenizer: the score of token 2 is not a number"
    );
    assert_eq!(
        error("llama", "tokenizer.ggml.token_type", Some(numbers(&[3, 3, 1, 1, 1]))),
        "reading the tokenizer: no token <0x00> and no unknown token, so that text with this byte could not be encoded"
    );
}

#[test]
fn ids_in_the_metadata_must_exist() {
    for key in ["bos", "eos", "eot", "unknown", "padding"] {
        let key: &'static str = Box::leak(format!("tokenizer.ggml.{key}_token_id").into_boxed_str());
        let message = error("llama", key, Some(number(5)));
        assert_eq!(message, format!("reading the tokenizer: {key} is 5, but the vocabulary has 5 tokens"));
        assert!(error("llama", key, Some(text("five"))).contains(key));
    }
}

#[test]
fn merges_must_have_two_parts() {
    for bad in ["", " ", "ab", " b", "a "] {
        let message = error("gemma4", "tokenizer.ggml.merges", Some(texts(&["a b", bad])));
        let expected = format!("merge 1 reads {bad:?}, expected two parts separated by a space");
        assert_eq!(message, format!("reading the tokenizer: {expected}"));
    }
    let long = "x".repeat(1 << 20);
    assert!(error("gemma4", "tokenizer.ggml.merges", Some(texts(&[long]))).len() < 200);
}

#[test]
fn merges_to_what_is_no_token_end_in_single_bytes() {
    let mut entries = sound("gemma4");
    entries.retain(|(key, _)| *key != "tokenizer.ggml.merges");
    entries.push(("tokenizer.ggml.merges", texts(&["b b", "a bb", "<bos >"])));
    let tokenizer = load(&entries).unwrap();
    assert_eq!(tokenizer.encode("abb", PLAIN), [1, 0, 0, 0]);
    // Not even a merge makes plain text a control token.
    assert!(!tokenizer.encode("<bos>", EncodeOptions { add_bos: false, ..PLAIN }).contains(&1));
}

#[test]
fn suppressed_tokens_are_those_that_exist() {
    let key = "tokenizer.ggml.suppress_tokens";
    assert_eq!(load(&sound("gemma4")).unwrap().suppressed(), []);
    let mut entries = sound("gemma4");
    entries.push((key, numbers(&[4, 2, i32::MAX, -1, 5, 2])));
    assert_eq!(load(&entries).unwrap().suppressed(), [2, 4]);
    assert_eq!(
        error("gemma4", key, Some(floats(&[1.0]))),
        "reading the tokenizer: tokenizer.ggml.suppress_tokens should be an array of integers"
    );
}

fn plain_vocab<T: AsRef<[u8]>>(model: VocabModel, pieces: &[T], merges: &[String]) -> Vocab {
    let unknown: &[u8] = b"<unk>";
    let tokens = || std::iter::once(unknown).chain(pieces.iter().map(|piece| piece.as_ref()));
    let mut types = vec![TokenType::Normal; pieces.len() + 1];
    types[0] = TokenType::Unknown;
    Vocab {
        model,
        tokens: tokens().collect(),
        scores: tokens().map(|piece| piece.len() as f32).collect(),
        types,
        merges: merges.iter().collect(),
        special: SpecialIds::default(),
        add_bos: false,
        suppressed: Vec::new(),
    }
}

#[test]
fn empty_and_repeated_tokens_do_no_harm() {
    for model in [VocabModel::SentencePiece, VocabModel::Gemma4] {
        let vocab = plain_vocab(model, &["", "a", "", "a", "aa", "aa"], &["a a".into(), "a a".into()]);
        let tokenizer = Tokenizer::new(vocab).unwrap();
        assert_eq!(tokenizer.encode("aaa", PLAIN), [5, 2]);
        assert_eq!(tokenizer.decode(&[1, 2, 3, 4, 5, 6], DecodeOptions::default()).unwrap(), "aaaaaa");
    }
}

/// Runs `work`, which takes well below a second unless its time grows with the square of its input.
fn in_time(work: impl FnOnce()) {
    let start = Instant::now();
    work();
    assert!(start.elapsed() < Duration::from_secs(10), "took {:?}", start.elapsed());
}

#[test]
fn many_equal_tokens_and_merges_take_linear_time() {
    in_time(|| {
        let pieces = vec!["ab"; 400_000];
        let merges = vec!["a b".to_owned(); 400_000];
        for model in [VocabModel::SentencePiece, VocabModel::Gemma4] {
            let tokenizer = Tokenizer::new(plain_vocab(model, &pieces, &merges)).unwrap();
            assert_eq!(tokenizer.encode("ab".repeat(50_000), PLAIN), vec![1; 50_000]);
        }
    });
}

#[test]
fn enormous_tokens_take_linear_time() {
    in_time(|| {
        let pieces = ["a".repeat(20_000_000), "a".to_owned(), "aa".to_owned()];
        for model in [VocabModel::SentencePiece, VocabModel::Gemma4] {
            let merges = ["a a".to_owned(), format!("aa {}", "b".repeat(5_000_000))];
            let tokenizer = Tokenizer::new(plain_vocab(model, &pieces, &merges)).unwrap();
            assert_eq!(tokenizer.encode("a".repeat(100_000), PLAIN), vec![3; 50_000]);
            assert_eq!(tokenizer.piece(1).unwrap().len(), 20_000_000);
        }
    });
}

#[test]
fn long_chains_of_merges_take_linear_time() {
    // Tokens of every length up to a thousand: each step joins a long symbol with one more letter.
    let pieces: Vec<String> = (1..=1000).map(|n| "a".repeat(n)).collect();
    let merges: Vec<String> = (1..1000).map(|n| format!("{} a", "a".repeat(n))).rev().collect();
    in_time(|| {
        for model in [VocabModel::SentencePiece, VocabModel::Gemma4] {
            let tokenizer = Tokenizer::new(plain_vocab(model, &pieces, &merges)).unwrap();
            let ids = tokenizer.encode("a".repeat(200_000), PLAIN);
            assert_eq!(tokenizer.decode(&ids, DecodeOptions::default()).unwrap().len(), 200_000);
        }
    });
}

proptest! {
    /// Whatever a file's bytes say, loading ends in a tokenizer that works or in an error.
    #[test]
    fn damaged_files_never_panic(
        gemma4: bool,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        text: String,
        ids in proptest::collection::vec(0_u32..8, 0..8),
    ) {
        let mut bytes = gguf_bytes(&sound(if gemma4 { "gemma4" } else { "llama" }));
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let Ok(gguf) = Gguf::from_bytes(SharedBytes::from(bytes), "test") else { return Ok(()) };
        let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) else { return Ok(()) };
        for options in [PLAIN, SPECIAL] {
            let ids = tokenizer.encode(&text, options);
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.n_tokens()));
        }
        let decoded = tokenizer.decode(&ids, DecodeOptions::default());
        prop_assert_eq!(decoded.is_ok(), ids.iter().all(|&id| (id as usize) < tokenizer.n_tokens()));
    }
}
