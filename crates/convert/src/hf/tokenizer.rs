//! Tokenizers of a checkpoint as GGUF vocabularies, entry for entry as llama.cpp's converter makes them.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value};

use super::config::{Family, TextConfig};
use super::tokenizer_json::TokenizerJson;
use super::{json, sentencepiece};
use crate::error::{ConvertError, Result};

/// Score of tokens that no merge makes.
const NO_SCORE: f32 = -1000.0;
/// Score of the entries that fill a vocabulary up to the embedding table.
const PADDING_SCORE: f32 = -10_000.0;

/// A vocabulary in GGUF's terms.
#[derive(Debug)]
pub struct Tokenizer {
    /// `tokenizer.ggml.model`: "gemma4" or "llama".
    pub model: &'static str,
    /// One entry an id.
    pub tokens: Vec<Token>,
    /// "left right", in order of rank; only for "gemma4".
    pub merges: Vec<String>,
    /// Special tokens: "bos", "eos", "unknown", "padding", "mask" and their ids.
    pub special_ids: Vec<(&'static str, u32)>,
    /// Chat templates by name.
    pub chat_templates: Vec<(String, String)>,
}

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub text: String,
    pub score: f32,
    pub kind: TokenKind,
}

/// Discriminants are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)]
pub enum TokenKind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

impl Token {
    fn padding(id: usize) -> Self {
        Self { text: format!("[PAD{id}]"), score: PADDING_SCORE, kind: TokenKind::Unused }
    }
}

impl Tokenizer {
    /// Reads a folder's tokenizer; `None` when it has none. The vocabulary is not yet fitted to the embedding table.
    ///
    /// # Errors
    /// When a tokenizer file cannot be read or is of a kind that the family does not use.
    pub fn read(dir: &Path, config: &TextConfig) -> Result<Option<Self>> {
        let tokenizer_json: Option<TokenizerJson> = TokenizerJson::open(dir)?;
        let settings: Map<String, Value> =
            json::read_optional(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
        let model_file = dir.join("tokenizer.model");
        let mut tokenizer = match (config.family, &tokenizer_json) {
            (Family::Gemma4, Some(tokenizer)) => gemma4(tokenizer, &settings),
            (Family::Gemma4, None) if model_file.is_file() => {
                let what = "tokenizer.json; tokenizer.model alone does not hold Gemma 4's merges".into();
                return Err(ConvertError::MissingFile { dir: dir.to_owned(), what });
            }
            (Family::Gemma3, _) if model_file.is_file() => gemma3_sentencepiece(dir, &settings)?,
            (Family::Gemma3, Some(tokenizer)) => gemma3_json(tokenizer, &settings),
            (_, None) => return Ok(None),
        };
        tokenizer.special_ids = special_ids(dir, &settings, &tokenizer.tokens)?;
        tokenizer.chat_templates = chat_templates(dir, &settings)?;
        Ok(Some(tokenizer))
    }

    /// Makes the vocabulary as long as the embedding table has rows; says what was done.
    pub fn fit(&mut self, rows: usize) -> Option<String> {
        let found = self.tokens.len();
        self.tokens.truncate(rows);
        (self.tokens.len()..rows).for_each(|id| self.tokens.push(Token::padding(id)));
        self.special_ids.retain(|&(_, id)| (id as usize) < rows);
        match found {
            n if n < rows => Some(format!(
                "the tokenizer has {n} tokens for {rows} embeddings; the rest are filled in as unused"
            )),
            n if n > rows => Some(format!(
                "the tokenizer has {n} tokens for {rows} embeddings; tokens from {rows} on are left out"
            )),
            _ => None,
        }
    }
}

fn empty(model: &'static str, tokens: Vec<Token>, merges: Vec<String>) -> Tokenizer {
    Tokenizer { model, tokens, merges, special_ids: Vec::new(), chat_templates: Vec::new() }
}

/// Tokens that a chat parser must see in generated text.
const GEMMA4_VISIBLE: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

fn gemma4(json: &TokenizerJson, settings: &Map<String, Value>) -> Tokenizer {
    let named = named_specials(settings);
    let special: HashSet<&str> =
        json.added.iter().filter(|t| t.special).map(|t| t.content.as_str()).collect();
    let added: HashSet<&str> = json.added.iter().map(|t| t.content.as_str()).collect();
    let kind = |text: &str| {
        let is_special = named.contains(text) || (special.contains(text) && !is_reserved(text));
        match text {
            _ if GEMMA4_VISIBLE.contains(&text) => TokenKind::UserDefined,
            _ if is_byte(text) => TokenKind::Byte,
            _ if is_special => TokenKind::Control,
            _ if added.contains(text) && !json.vocab.contains_key(text) => TokenKind::UserDefined,
            _ => TokenKind::Normal,
        }
    };
    let token = |text: String| Token { kind: kind(&text), score: NO_SCORE, text };
    empty(
        "gemma4",
        json.texts()
            .into_iter()
            .enumerate()
            .map(|(id, t)| t.map_or_else(|| Token::padding(id), token))
            .collect(),
        json.merge_lines(),
    )
}

/// Places kept free in the vocabulary: listed as special by some tokenizers, but plain text to every engine.
fn is_reserved(text: &str) -> bool {
    text == "[multimodal]" || (text.starts_with("<unused") && text.ends_with('>'))
}

fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|t| t.strip_suffix('>'));
    digits.is_some_and(|d| d.len() == 2 && d.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Texts that `tokenizer_config.json` names as special: `*_token`, and its lists of further ones.
fn named_specials(settings: &Map<String, Value>) -> HashSet<String> {
    let mut named = HashSet::new();
    for (key, value) in settings {
        match value {
            _ if key.ends_with("_token") => named.extend(content(value)),
            Value::Array(list) if key.ends_with("special_tokens") => {
                named.extend(list.iter().filter_map(content))
            }
            Value::Object(map) if key.ends_with("special_tokens") => {
                named.extend(map.values().filter_map(content))
            }
            _ => {}
        }
    }
    named
}

/// A token's text, written plainly or as an object with `content`.
fn content(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

fn gemma3_sentencepiece(dir: &Path, settings: &Map<String, Value>) -> Result<Tokenizer> {
    let mut tokens = sentencepiece::read(&dir.join("tokenizer.model"))?;
    let path = dir.join("added_tokens.json");
    let added: HashMap<String, usize> = json::read_optional(&path)?.unwrap_or_default();
    for (text, id) in added {
        put(&mut tokens, id, Token { text, score: NO_SCORE, kind: TokenKind::UserDefined });
    }
    let decoder = settings.get("added_tokens_decoder").and_then(Value::as_object);
    for (id, value) in decoder.into_iter().flatten() {
        let (Ok(id), Some(text)) = (id.parse(), content(value)) else {
            let path = dir.join("tokenizer_config.json");
            return Err(ConvertError::file(
                &path,
                format!("'added_tokens_decoder' has a malformed entry '{id}'"),
            ));
        };
        let special = value.get("special").and_then(Value::as_bool).unwrap_or(false);
        put(&mut tokens, id, added_token(text, special));
    }
    Ok(empty("llama", tokens, Vec::new()))
}

/// Ids beyond this belong to no vocabulary.
const MAX_ID: usize = 1 << 24;

fn put(tokens: &mut Vec<Token>, id: usize, token: Token) {
    if id < MAX_ID {
        (tokens.len()..=id).for_each(|i| tokens.push(Token::padding(i)));
        tokens[id] = token;
    }
}

/// An added token of Gemma 3. In the text of user-defined ones spaces are spaces, as the splitter meets them.
fn added_token(text: String, special: bool) -> Token {
    if special || looks_special(&text) {
        return Token { text, score: NO_SCORE, kind: TokenKind::Control };
    }
    Token { text: text.replace('\u{2581}', " "), score: NO_SCORE, kind: TokenKind::UserDefined }
}

/// Markers that tokenizers list without calling them special.
fn looks_special(text: &str) -> bool {
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || (text.starts_with("<|") && text.ends_with("|>"))
        || (text.starts_with("<unused") && text.ends_with('>'))
}

/// Gemma 3's merges as SentencePiece scores: the merge of lowest rank joins first, so a token's score is minus the
/// rank of the first merge that makes it.
fn gemma3_json(json: &TokenizerJson, _settings: &Map<String, Value>) -> Tokenizer {
    let mut scores: HashMap<String, f32> = HashMap::with_capacity(json.merges.len());
    for (rank, (left, right)) in json.merges.iter().enumerate() {
        scores.entry(format!("{left}{right}")).or_insert(-(rank as f32));
    }
    let added: HashMap<&str, bool> = json.added.iter().map(|t| (t.content.as_str(), t.special)).collect();
    let token = |text: String| match added.get(text.as_str()) {
        Some(&special) => added_token(text, special),
        None if is_byte(&text) => Token { text, score: NO_SCORE, kind: TokenKind::Byte },
        None => {
            Token { score: scores.get(&text).copied().unwrap_or(NO_SCORE), kind: TokenKind::Normal, text }
        }
    };
    let tokens =
        json.texts().into_iter().enumerate().map(|(id, t)| t.map_or_else(|| Token::padding(id), token));
    empty("llama", tokens.collect(), Vec::new())
}

/// Ids of the special tokens: from the texts in `tokenizer_config.json`, else from the numbers in `config.json`.
fn special_ids(
    dir: &Path,
    settings: &Map<String, Value>,
    tokens: &[Token],
) -> Result<Vec<(&'static str, u32)>> {
    const KINDS: [(&str, &str); 5] =
        [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"), ("mask", "mask")];
    let config: Map<String, Value> = json::read(&dir.join("config.json"))?;
    let nested = config.get("text_config").and_then(Value::as_object);
    let by_text: HashMap<&str, u32> = tokens.iter().zip(0..).map(|(t, id)| (t.text.as_str(), id)).collect();
    let id = |kind: &str| {
        let text = settings.get(&format!("{kind}_token")).and_then(content);
        let named = text.and_then(|t| by_text.get(t.as_str()).copied());
        let key = format!("{kind}_token_id");
        let number = |map: &Map<String, Value>| {
            let value = map.get(&key)?;
            // Several ends of generation are listed with the plain one first.
            value.as_u64().or_else(|| value.get(0)?.as_u64()).and_then(|n| u32::try_from(n).ok())
        };
        named.or_else(|| number(&config)).or_else(|| nested.and_then(number))
    };
    Ok(KINDS.iter().filter_map(|&(kind, key)| id(kind).map(|id| (key, id))).collect())
}

/// Chat templates, by name; the plain one is called "default".
fn chat_templates(dir: &Path, settings: &Map<String, Value>) -> Result<Vec<(String, String)>> {
    let jinja = dir.join("chat_template.jinja");
    let stored = match settings.get("chat_template").filter(|t| !t.is_null()) {
        Some(template) => template.clone(),
        None if jinja.is_file() => {
            Value::String(std::fs::read_to_string(&jinja).map_err(ConvertError::read(&jinja))?)
        }
        None => {
            let file: Map<String, Value> =
                json::read_optional(&dir.join("chat_template.json"))?.unwrap_or_default();
            file.get("chat_template").cloned().unwrap_or_default()
        }
    };
    let field = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    Ok(match stored {
        Value::String(template) => vec![("default".into(), template)],
        Value::Array(list) => {
            list.iter().filter_map(|e| Some((field(e, "name")?, field(e, "template")?))).collect()
        }
        _ => Vec::new(),
    })
}
