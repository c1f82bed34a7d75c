//! Small Hugging Face folders, made up on the spot.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

/// Shape and elements of a tensor.
pub type Tensor = (Vec<u64>, Vec<f32>);

/// A folder before it is written.
#[derive(Clone)]
pub struct Folder {
    pub config: Value,
    pub tensors: BTreeMap<String, Tensor>,
}

impl Folder {
    /// A Gemma 4 model with two sliding layers and a full one, experts in all of them.
    pub fn gemma4_moe() -> Self {
        let mut folder = Self { config: gemma4_config(), tensors: BTreeMap::new() };
        folder.config["enable_moe_block"] = json!(true);
        folder.add("embed_tokens.weight", &[40, 32]);
        folder.add("norm.weight", &[32]);
        for i in 0..3 {
            let (head_dim, kv_heads) = if i == 2 { (16, 1) } else { (8, 2) };
            folder.layer(i, 4 * head_dim, kv_heads * head_dim, head_dim);
            if i != 2 {
                folder.add(&format!("layers.{i}.self_attn.v_proj.weight"), &[kv_heads * head_dim, 32]);
            }
            for (role, shape) in [
                ("router.proj.weight", vec![4, 32]),
                ("router.scale", vec![32]),
                ("router.per_expert_scale", vec![4]),
                ("experts.gate_up_proj", vec![4, 64, 32]),
                ("experts.down_proj", vec![4, 32, 32]),
                ("pre_feedforward_layernorm_2.weight", vec![32]),
                ("post_feedforward_layernorm_1.weight", vec![32]),
                ("post_feedforward_layernorm_2.weight", vec![32]),
                ("layer_scalar", vec![1]),
            ] {
                folder.add(&format!("layers.{i}.{role}"), &shape);
            }
        }
        folder
    }

    /// A Gemma 3 model of six layers, the fourth of them full.
    pub fn gemma3() -> Self {
        let mut folder = Self { config: gemma3_config(), tensors: BTreeMap::new() };
        folder.add("embed_tokens.weight", &[40, 32]);
        folder.add("norm.weight", &[32]);
        for i in 0..6 {
            folder.layer(i, 32, 16, 8);
            folder.add(&format!("layers.{i}.self_attn.v_proj.weight"), &[16, 32]);
        }
        folder
    }

    fn layer(&mut self, i: usize, q: u64, kv: u64, head_dim: u64) {
        for (role, shape) in [
            ("input_layernorm.weight", vec![32]),
            ("self_attn.q_proj.weight", vec![q, 32]),
            ("self_attn.k_proj.weight", vec![kv, 32]),
            ("self_attn.o_proj.weight", vec![32, q]),
            ("self_attn.q_norm.weight", vec![head_dim]),
            ("self_attn.k_norm.weight", vec![head_dim]),
            ("post_attention_layernorm.weight", vec![32]),
            ("pre_feedforward_layernorm.weight", vec![32]),
            ("mlp.gate_proj.weight", vec![64, 32]),
            ("mlp.up_proj.weight", vec![64, 32]),
            ("mlp.down_proj.weight", vec![32, 64]),
            ("post_feedforward_layernorm.weight", vec![32]),
        ] {
            self.add(&format!("layers.{i}.{role}"), &shape);
        }
    }

    /// Adds a text tensor with elements that BF16 holds exactly and that differ between tensors.
    pub fn add(&mut self, name: &str, shape: &[u64]) {
        let seed: u32 = name.bytes().fold(7, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
        let value =
            |i: u64| ((seed.wrapping_add(i as u32).wrapping_mul(2_654_435_761) >> 25) as f32 - 64.0) / 64.0;
        let elements = (0..shape.iter().product()).map(value).collect();
        self.tensors.insert(format!("model.{name}"), (shape.to_vec(), elements));
    }

    /// Writes `config.json` and one `model.safetensors`.
    pub fn write(&self, dir: &Path) {
        self.write_config(dir);
        std::fs::write(dir.join("model.safetensors"), safetensors(&self.tensors)).expect("written");
    }

    /// Writes `config.json`, two shards and their index.
    pub fn write_sharded(&self, dir: &Path) {
        self.write_config(dir);
        let half = self.tensors.len() / 2;
        let mut weight_map = serde_json::Map::new();
        for (number, skip) in [(1, 0), (2, half)] {
            let name = format!("model-0000{number}-of-00002.safetensors");
            let take = if number == 1 { half } else { usize::MAX };
            let part: BTreeMap<_, _> = self.tensors.clone().into_iter().skip(skip).take(take).collect();
            std::fs::write(dir.join(&name), safetensors(&part)).expect("written");
            weight_map.extend(part.into_keys().map(|tensor| (tensor, json!(name))));
        }
        let index = json!({"metadata": {}, "weight_map": weight_map}).to_string();
        std::fs::write(dir.join("model.safetensors.index.json"), index).expect("written");
    }

    pub fn write_config(&self, dir: &Path) {
        std::fs::write(dir.join("config.json"), self.config.to_string()).expect("written");
    }
}

fn gemma4_config() -> Value {
    json!({
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text",
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "vocab_size": 40,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_global_key_value_heads": 1,
        "head_dim": 8, "global_head_dim": 16, "attention_k_eq_v": true,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 6, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
        "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32,
        "final_logit_softcapping": 30.0, "tie_word_embeddings": true,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    })
}

fn gemma3_config() -> Value {
    json!({
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 6, "vocab_size": 40,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 2,
        "sliding_window": 6, "sliding_window_pattern": 4, "max_position_embeddings": 128,
        "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    })
}

/// A safetensors file of BF16 tensors.
pub fn safetensors(tensors: &BTreeMap<String, Tensor>) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (shape, elements)) in tensors {
        let begin = data.len();
        data.extend(elements.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()));
        let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.extend(data);
    file
}
