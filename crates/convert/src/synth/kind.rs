//! Shapes of the released models, as their `config.json` states them.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value, json};

use super::SyntheticLayersError;
use crate::error::Result;
use crate::hf::config::TextConfig;
use crate::hf::fields::Fields;

/// A released model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntheticKind {
    /// Gemma 3 270M.
    Gemma3_270M,
    /// Gemma 4 E2B: per-layer embeddings, shared keys and values.
    E2B,
    /// Gemma 4 E4B.
    E4B,
    /// Gemma 4 26B-A4B: a mixture of 128 experts.
    A4B26,
    /// Gemma 4 31B: dense.
    Dense31B,
}

impl SyntheticKind {
    /// All kinds, small to large.
    pub const ALL: [Self; 5] = [Self::Gemma3_270M, Self::E2B, Self::E4B, Self::A4B26, Self::Dense31B];

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gemma3_270M => "270m",
            Self::E2B => "e2b",
            Self::E4B => "e4b",
            Self::A4B26 => "26b-a4b",
            Self::Dense31B => "31b",
        }
    }

    /// The model's configuration, cut to the first `layers` layers if that is given.
    pub(super) fn config(self, layers: Option<u32>) -> Result<TextConfig> {
        let mut map = self.fields();
        if let Some(layers) = layers {
            let all = map["num_hidden_layers"].as_u64().unwrap_or(0);
            let own = all - map.get("num_kv_shared_layers").and_then(Value::as_u64).unwrap_or(0);
            let layers = u64::from(layers);
            if layers == 0 || layers > all {
                let problem = format!("a {self} has 1 to {all} layers, not {layers}");
                return Err(SyntheticLayersError(problem).into());
            }
            map.insert("num_hidden_layers".into(), layers.into());
            // Of the layers that share keys and values those are left that are not cut.
            if map.contains_key("num_kv_shared_layers") {
                map.insert("num_kv_shared_layers".into(), layers.saturating_sub(own).into());
            }
            if let Some(Value::Array(types)) = map.get_mut("layer_types") {
                types.truncate(layers as usize);
            }
        }
        TextConfig::from_fields(&Fields::from_map(map, "the synthetic model's configuration"))
    }

    fn fields(self) -> Map<String, Value> {
        // Each group of layers ends with one that attends to everything.
        let pattern = |layers: usize, group: usize| -> Vec<&str> {
            (1..=layers)
                .map(|i| if i.is_multiple_of(group) { "full_attention" } else { "sliding_attention" })
                .collect()
        };
        let own = match self {
            Self::Gemma3_270M => json!({
                "model_type": "gemma3_text",
                "hidden_size": 640, "intermediate_size": 2048,
                "num_hidden_layers": 18, "layer_types": pattern(18, 6),
                "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
                "query_pre_attn_scalar": 256, "sliding_window": 512,
                "max_position_embeddings": 32_768, "vocab_size": 262_144,
                "rope_theta": 1e6, "rope_local_base_freq": 1e4,
            }),
            Self::E2B => json!({
                "hidden_size": 1536, "intermediate_size": 6144,
                "num_hidden_layers": 35, "layer_types": pattern(35, 5),
                "num_attention_heads": 8, "num_key_value_heads": 1,
                "num_kv_shared_layers": 20, "use_double_wide_mlp": true,
                "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262_144,
                "sliding_window": 512, "max_position_embeddings": 131_072,
            }),
            Self::E4B => json!({
                "hidden_size": 2560, "intermediate_size": 10_240,
                "num_hidden_layers": 42, "layer_types": pattern(42, 6),
                "num_attention_heads": 8, "num_key_value_heads": 2,
                "num_kv_shared_layers": 18,
                "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262_144,
                "sliding_window": 512, "max_position_embeddings": 131_072,
            }),
            Self::A4B26 => json!({
                "hidden_size": 2816, "intermediate_size": 2112,
                "num_hidden_layers": 30, "layer_types": pattern(30, 6),
                "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2,
                "attention_k_eq_v": true,
                "enable_moe_block": true, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
                "sliding_window": 1024, "max_position_embeddings": 262_144,
            }),
            Self::Dense31B => json!({
                "hidden_size": 5376, "intermediate_size": 21_504,
                "num_hidden_layers": 60, "layer_types": pattern(60, 6),
                "num_attention_heads": 32, "num_key_value_heads": 16, "num_global_key_value_heads": 4,
                "attention_k_eq_v": true,
                "sliding_window": 1024, "max_position_embeddings": 262_144,
            }),
        };
        let shared = match self {
            Self::Gemma3_270M => json!({}),
            _ => json!({
                "model_type": "gemma4_text",
                "head_dim": 256, "global_head_dim": 512, "vocab_size": 262_144,
                "final_logit_softcapping": 30.0,
                "rope_parameters": {
                    "full_attention": {
                        "partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"
                    },
                    "sliding_attention": { "rope_theta": 1e4, "rope_type": "default" },
                },
            }),
        };
        [shared, own].into_iter().filter_map(|part| part.as_object().cloned()).flatten().collect()
    }
}

impl fmt::Display for SyntheticKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SyntheticKind {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|k| k.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("no synthetic model '{name}'; known: {}", known()))
    }
}
