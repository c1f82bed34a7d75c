//! `tokenizer.json` of the Hugging Face tokenizers library, as far as byte-pair encoding needs it.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use super::json;
use crate::error::{ConvertError, Result};

const FILE: &str = "tokenizer.json";
/// Ids beyond this belong to no vocabulary.
const MAX_TOKENS: usize = 1 << 24;

/// A byte-pair encoding with byte fallback.
#[derive(Debug)]
pub struct TokenizerJson {
    /// Ids by text.
    pub vocab: HashMap<String, u32>,
    /// Pairs in order of rank.
    pub merges: Vec<(String, String)>,
    /// Tokens that are matched before the text is split.
    pub added: Vec<AddedToken>,
}

/// A token that is matched whole.
#[derive(Debug, Deserialize)]
pub struct AddedToken {
    pub id: u32,
    pub content: String,
    #[serde(default)]
    pub special: bool,
}

#[derive(Deserialize)]
struct Stored {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    vocab: HashMap<String, u32>,
    #[serde(default)]
    merges: Vec<Merge>,
}

/// A pair, in the newer form or in the older one with a space between.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Line(String),
}

impl TokenizerJson {
    /// Reads a folder's file; `None` when it has none.
    pub fn open(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(FILE);
        let Some(stored): Option<Stored> = json::read_optional(&path)? else { return Ok(None) };
        let problem = |text: String| ConvertError::file(&path, text);
        let kind = stored.model.kind.unwrap_or_else(|| "BPE".into());
        if kind != "BPE" || !stored.model.byte_fallback {
            let fallback = if stored.model.byte_fallback { "with" } else { "without" };
            return Err(problem(format!(
                "its model is {kind} {fallback} byte fallback; Gemma's is BPE with it"
            )));
        }
        let ids = stored.model.vocab.values().chain(stored.added_tokens.iter().map(|t| &t.id));
        if let Some(id) = ids.copied().find(|&id| id as usize >= MAX_TOKENS) {
            return Err(problem(format!("token id {id} is beyond any vocabulary")));
        }
        let merges = stored.model.merges.into_iter().map(split).collect::<Result<_, _>>().map_err(problem)?;
        Ok(Some(Self { vocab: stored.model.vocab, merges, added: stored.added_tokens }))
    }

    /// The text of every id; `None` where the file has none.
    pub fn texts(&self) -> Vec<Option<String>> {
        let added = self.added.iter().map(|t| (&t.content, t.id));
        let all = self.vocab.iter().map(|(text, &id)| (text, id)).chain(added);
        let mut texts = Vec::new();
        for (text, id) in all {
            let id = id as usize;
            if id >= texts.len() {
                texts.resize(id + 1, None);
            }
            texts[id] = Some(text.clone());
        }
        texts
    }

    /// Merges as GGUF has them: both halves in one line. A space inside a half is written U+0120, since the first
    /// space separates.
    pub fn merge_lines(&self) -> Vec<String> {
        let escaped = |half: &str| half.replace(' ', "\u{120}");
        self.merges.iter().map(|(left, right)| format!("{} {}", escaped(left), escaped(right))).collect()
    }
}

fn split(merge: Merge) -> Result<(String, String), String> {
    match merge {
        Merge::Pair(left, right) => Ok((left, right)),
        // A half may itself begin with a space, so the search starts behind the first character.
        Merge::Line(line) => {
            let behind = line.chars().next().map_or(0, char::len_utf8);
            match line[behind..].find(' ') {
                Some(at) => Ok((line[..behind + at].into(), line[behind + at + 1..].into())),
                None => Err(format!("merge '{line}' is not two parts with a space between")),
            }
        }
    }
}
