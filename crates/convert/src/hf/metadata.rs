//! Metadata of a converted model, under the keys and in the types that llama.cpp's converter writes.

use std::path::Path;

use lapidary_gguf::{GgufWriter, Strings, WriteError};
use serde_json::{Map, Value};

use super::config::{Family, TextConfig};
use super::json;
use super::tokenizer::Tokenizer;
use crate::error::Result;

/// What is known of the model beside its configuration.
pub struct General {
    /// `general.name`.
    pub name: String,
    /// `general.size_label`, for example "8x2.4M".
    pub size_label: String,
    /// Recommended sampling settings: the key behind `general.sampling.` and the value.
    pub sampling: Vec<(&'static str, Setting)>,
    /// Tokens never to be sampled.
    pub suppressed: Vec<i32>,
}

/// A sampling setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Setting {
    Float(f32),
    Int(i32),
}

impl General {
    /// Reads `generation_config.json`; names the model after its folder.
    pub fn read(dir: &Path, size_label: String) -> Result<Self> {
        let generation: Map<String, Value> =
            json::read_optional(&dir.join("generation_config.json"))?.unwrap_or_default();
        Ok(Self {
            name: name(dir),
            size_label,
            sampling: sampling(&generation),
            suppressed: suppressed(&generation),
        })
    }

    /// Writes the `general` section.
    pub fn write(&self, writer: &mut GgufWriter, family: Family) -> Result<(), WriteError> {
        writer.set("general.architecture", family.name())?;
        writer.set("general.type", "model")?;
        for &(key, setting) in &self.sampling {
            let key = format!("general.sampling.{key}");
            match setting {
                Setting::Float(x) => writer.set(&key, x)?,
                Setting::Int(n) => writer.set(&key, n)?,
            }
        }
        writer.set("general.name", self.name.as_str())?;
        writer.set("general.size_label", self.size_label.as_str())
    }

    /// Writes the tokens that must not be sampled.
    pub fn write_suppressed(&self, writer: &mut GgufWriter) -> Result<(), WriteError> {
        match self.suppressed.as_slice() {
            [] => Ok(()),
            ids => writer.set("tokenizer.ggml.suppress_tokens", ids),
        }
    }
}

/// The folder's name as a title: "gemma-3-270m" becomes "Gemma 3 270m".
fn name(dir: &Path) -> String {
    let absolute = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let folder = absolute.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let capital = |word: &str| {
        let mut chars = word.chars();
        chars.next().map(|c| c.to_uppercase().chain(chars).collect::<String>()).unwrap_or_default()
    };
    folder.split('-').map(capital).collect::<Vec<_>>().join(" ")
}

fn sampling(generation: &Map<String, Value>) -> Vec<(&'static str, Setting)> {
    let float = |key: &str| generation.get(key).and_then(Value::as_f64).map(|x| Setting::Float(x as f32));
    let int = |key: &str| {
        generation.get(key).and_then(Value::as_i64).and_then(|n| i32::try_from(n).ok()).map(Setting::Int)
    };
    let all = [
        ("top_k", int("top_k")),
        ("top_p", float("top_p")),
        ("min_p", float("min_p")),
        ("temp", float("temperature")),
        ("penalty_repeat", float("repetition_penalty")),
    ];
    all.into_iter().filter_map(|(key, setting)| setting.map(|s| (key, s))).collect()
}

fn suppressed(generation: &Map<String, Value>) -> Vec<i32> {
    let ids = generation.get("suppress_tokens").and_then(Value::as_array);
    ids.into_iter().flatten().filter_map(Value::as_i64).filter_map(|n| i32::try_from(n).ok()).collect()
}

/// A count of parameters in three or more characters: "270M", "8x2.4M" for a mixture of experts.
pub fn size_label(shared: u64, one_expert: u64, experts: Option<u64>) -> String {
    let total = (shared + one_expert) as f64;
    let (scaled, suffix) = match total {
        n if n > 1e12 => (n * 1e-12, "T"),
        n if n > 1e9 => (n * 1e-9, "B"),
        n if n > 1e6 => (n * 1e-6, "M"),
        n => (n * 1e-3, "K"),
    };
    let digits = if scaled.round() >= 10.0 {
        0
    } else if scaled.round() >= 1.0 {
        1
    } else {
        2
    };
    let size = format!("{scaled:.digits$}{suffix}");
    experts.map(|count| format!("{count}x{size}")).unwrap_or(size)
}

/// Writes the `gemma3.*` or `gemma4.*` section and the type of the file.
pub fn write_model(writer: &mut GgufWriter, config: &TextConfig, file_type: u32) -> Result<(), WriteError> {
    let mut keys = Keys { writer, prefix: config.family.name() };
    keys.count("block_count", config.layers.len() as u64)?;
    keys.count("context_length", config.context)?;
    keys.count("embedding_length", config.hidden)?;
    keys.per_layer("feed_forward_length", config.layers.iter().map(|l| l.feed_forward))?;
    keys.count("attention.head_count", config.heads)?;
    keys.per_layer("attention.head_count_kv", config.layers.iter().map(|l| l.kv_heads))?;
    if config.rope_full.factor != 1.0 {
        keys.writer.set(&format!("{}.rope.scaling.type", keys.prefix), "linear")?;
        keys.float("rope.scaling.factor", config.rope_full.factor)?;
    }
    keys.float("rope.freq_base", config.rope_full.theta)?;
    keys.float("rope.freq_base_swa", config.rope_sliding.theta)?;
    keys.float("attention.layer_norm_rms_epsilon", config.eps)?;
    if let Some(experts) = config.experts {
        keys.count("expert_count", experts.count)?;
        keys.count("expert_used_count", experts.used)?;
        keys.count("expert_feed_forward_length", experts.feed_forward)?;
    }
    keys.count("attention.key_length", config.head_dim_full)?;
    keys.count("attention.value_length", config.head_dim_full)?;
    if let Some(cap) = config.softcap {
        keys.float("final_logit_softcapping", cap)?;
    }
    match config.family {
        Family::Gemma3 => keys.gemma3(config)?,
        Family::Gemma4 => keys.gemma4(config)?,
    }
    writer.set("general.file_type", file_type)?;
    writer.set("general.quantization_version", 2u32)
}

struct Keys<'a> {
    writer: &'a mut GgufWriter,
    prefix: &'static str,
}

impl Keys<'_> {
    fn count(&mut self, key: &str, n: u64) -> Result<(), WriteError> {
        let n = u32::try_from(n).expect("counts are checked when the configuration is read");
        self.writer.set(&format!("{}.{key}", self.prefix), n)
    }

    fn float(&mut self, key: &str, x: f64) -> Result<(), WriteError> {
        self.writer.set(&format!("{}.{key}", self.prefix), x as f32)
    }

    /// One number when all layers agree, an array otherwise.
    fn per_layer(&mut self, key: &str, values: impl Iterator<Item = u64>) -> Result<(), WriteError> {
        let values: Vec<i32> = values
            .map(|n| i32::try_from(n).expect("counts are checked when the configuration is read"))
            .collect();
        match values.first() {
            Some(&first) if values.iter().all(|&n| n == first) => self.count(key, first as u64),
            _ => self.writer.set(&format!("{}.{key}", self.prefix), values.as_slice()),
        }
    }

    fn pattern(&mut self, config: &TextConfig) -> Result<(), WriteError> {
        let pattern: Vec<bool> = config.layers.iter().map(|l| l.sliding).collect();
        self.writer.set(&format!("{}.attention.sliding_window_pattern", self.prefix), pattern.as_slice())
    }

    fn gemma3(&mut self, config: &TextConfig) -> Result<(), WriteError> {
        // Readers take every sixth layer for full when the pattern is absent.
        let usual = config.layers.iter().enumerate().all(|(i, l)| l.sliding == (i % 6 != 5));
        // A model without sliding layers is one without a window.
        if config.layers.iter().any(|l| l.sliding) {
            self.count("attention.sliding_window", config.window)?;
            if !usual {
                self.pattern(config)?;
            }
        }
        Ok(())
    }

    fn gemma4(&mut self, config: &TextConfig) -> Result<(), WriteError> {
        self.count("attention.sliding_window", config.window)?;
        self.count("attention.shared_kv_layers", config.shared_kv)?;
        self.count("embedding_length_per_layer_input", config.per_layer.map_or(0, |p| p.dim))?;
        self.pattern(config)?;
        self.count("attention.key_length_swa", config.head_dim_sliding)?;
        self.count("attention.value_length_swa", config.head_dim_sliding)?;
        self.count("rope.dimension_count", config.head_dim_full)?;
        self.count("rope.dimension_count_swa", config.head_dim_sliding)
    }
}

/// Writes the vocabulary, or that there is none.
pub fn write_tokenizer(
    writer: &mut GgufWriter,
    config: &TextConfig,
    vocab: u64,
    tokenizer: Option<&Tokenizer>,
) -> Result<(), WriteError> {
    let Some(tokenizer) = tokenizer else {
        writer.set("tokenizer.ggml.model", "none")?;
        return writer.set(&format!("{}.vocab_size", config.family.name()), vocab as u32);
    };
    writer.set("tokenizer.ggml.model", tokenizer.model)?;
    if tokenizer.model == "llama" {
        writer.set("tokenizer.ggml.pre", "default")?;
    }
    let texts: Strings = tokenizer.tokens.iter().map(|t| &t.text).collect();
    let scores: Vec<f32> = tokenizer.tokens.iter().map(|t| t.score).collect();
    let types: Vec<i32> = tokenizer.tokens.iter().map(|t| t.kind as i32).collect();
    writer.set("tokenizer.ggml.tokens", texts)?;
    writer.set("tokenizer.ggml.scores", scores.as_slice())?;
    writer.set("tokenizer.ggml.token_type", types.as_slice())?;
    if !tokenizer.merges.is_empty() {
        writer.set("tokenizer.ggml.merges", tokenizer.merges.iter().collect::<Strings>())?;
    }
    for (key, id) in &tokenizer.special_ids {
        writer.set(&format!("tokenizer.ggml.{key}_token_id"), *id)?;
    }
    for (name, template) in &tokenizer.chat_templates {
        match name.as_str() {
            "default" => writer.set("tokenizer.chat_template", template.as_str())?,
            other => writer.set(&format!("tokenizer.chat_template.{other}"), template.as_str())?,
        }
    }
    writer.set("tokenizer.ggml.add_space_prefix", false)?;
    writer.set("tokenizer.ggml.add_bos_token", true)?;
    writer.set("tokenizer.ggml.add_eos_token", false)
}
