//! A made-up vocabulary of the true size.
//!
//! Control tokens and bytes stand where Gemma has them; behind them come the printable characters, then words that are
//! built from shorter ones, so that each is the merge of two others, as a byte-pair vocabulary's are.

use std::collections::HashSet;

use crate::hf::config::{Family, TextConfig};
use crate::hf::tokenizer::{Token, TokenKind, Tokenizer};

/// Tokens before the bytes.
const CONTROL: [&str; 5] = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"];

/// Makes the vocabulary for a model.
pub fn tokenizer(config: &TextConfig) -> Tokenizer {
    let size = config.vocab as usize;
    let mut tokens: Vec<Token> = Vec::with_capacity(size);
    let token = |text: String, score: f32, kind| Token { text, score, kind };
    for text in CONTROL {
        let kind = if text == "<unk>" { TokenKind::Unknown } else { TokenKind::Control };
        tokens.push(token(text.into(), 0.0, kind));
    }
    tokens.push(token("\n".into(), 0.0, TokenKind::UserDefined));
    tokens.extend((0..=255u8).map(|byte| token(format!("<0x{byte:02X}>"), 0.0, TokenKind::Byte)));
    let mut seen: HashSet<String> = HashSet::new();
    // Single characters, the word separator first.
    let characters = std::iter::once('\u{2581}').chain(('!'..='~').chain('\u{c0}'..='\u{17f}'));
    let mut words: Vec<String> = characters.map(String::from).collect();
    seen.extend(words.iter().cloned());
    let singles = words.len();
    let mut merges = Vec::new();
    let letters: Vec<String> = ('a'..='z').map(String::from).collect();
    let wanted = size.saturating_sub(tokens.len());
    // Every word followed by every letter, the separator's and the letters' first: all short words, then longer ones.
    let mut order: Vec<usize> =
        std::iter::once(0).chain((1..singles).filter(|&i| letters.contains(&words[i]))).collect();
    let mut next = 0;
    while words.len() < wanted {
        let left = words[order[next]].clone();
        next += 1;
        for letter in &letters {
            let word = format!("{left}{letter}");
            if words.len() < wanted && seen.insert(word.clone()) {
                merges.push(format!("{left} {letter}"));
                order.push(words.len());
                words.push(word);
            }
        }
    }
    words.truncate(wanted);
    for (rank, word) in words.into_iter().enumerate() {
        tokens.push(token(word, -(rank as f32), TokenKind::Normal));
    }
    let gemma4 = config.family == Family::Gemma4;
    let mut special_ids = vec![("bos", 2), ("eos", 1), ("unknown", 3), ("padding", 0)];
    if gemma4 {
        special_ids.push(("mask", 4));
        tokens.iter_mut().for_each(|t| t.score = -1000.0);
    }
    Tokenizer {
        model: if gemma4 { "gemma4" } else { "llama" },
        tokens,
        merges: if gemma4 { merges } else { Vec::new() },
        special_ids,
        chat_templates: Vec::new(),
    }
}
