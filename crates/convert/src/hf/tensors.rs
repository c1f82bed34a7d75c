//! The tensors that a configuration asks for: their names in the checkpoint and in GGUF, and their shapes.

use super::config::{Family, Layer, TextConfig};

/// One tensor of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// Name in the checkpoint, behind the model's prefix.
    pub hf: String,
    /// Name in GGUF.
    pub gguf: String,
    /// Shape in the checkpoint, slowest dimension first.
    pub shape: Vec<u64>,
    /// Whether the model cannot do without it.
    pub required: bool,
    /// What becomes of its elements.
    pub edit: Edit,
    /// Whether it has one row a token, of which those beyond the vocabulary are cut.
    pub by_token: bool,
}

/// `x -> (x + shift) * factor`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edit {
    pub shift: f32,
    pub factor: f32,
}

impl Edit {
    pub const NONE: Self = Self { shift: 0.0, factor: 1.0 };
}

/// All tensors of a model, in the order in which they are written.
pub fn specs(config: &TextConfig) -> Vec<TensorSpec> {
    let mut list = List { config, specs: Vec::new() };
    list.globals();
    for (i, layer) in config.layers.iter().enumerate() {
        list.layer(i, layer);
    }
    list.norm("norm", "output_norm", config.hidden, Edit::NONE);
    list.specs
}

/// Divisors of the full layers' rotation: 1 for the pairs that turn, so much for the others that they stand still.
/// Only Gemma 4 has them.
pub fn rope_divisors(config: &TextConfig) -> Option<Vec<f32>> {
    const STILL: f32 = 1e30;
    if config.family != Family::Gemma4 || !config.has_full_layer() {
        return None;
    }
    let pairs = (config.head_dim_full / 2) as usize;
    let turning = (config.head_dim_full as f64 * config.rope_full.rotated / 2.0) as usize;
    Some((0..pairs).map(|i| if i < turning { 1.0 } else { STILL }).collect())
}

struct List<'a> {
    config: &'a TextConfig,
    specs: Vec<TensorSpec>,
}

impl List<'_> {
    fn push(&mut self, hf: impl Into<String>, gguf: impl Into<String>, shape: &[u64]) -> &mut TensorSpec {
        let (hf, gguf, shape) = (hf.into(), gguf.into(), shape.to_vec());
        self.specs.push(TensorSpec { hf, gguf, shape, required: true, edit: Edit::NONE, by_token: false });
        self.specs.last_mut().expect("just pushed")
    }

    /// A norm: Gemma 3 stores its weights minus 1.
    fn norm(
        &mut self,
        hf: impl Into<String>,
        gguf: impl Into<String>,
        len: u64,
        edit: Edit,
    ) -> &mut TensorSpec {
        let shift = if self.config.family == Family::Gemma3 { 1.0 } else { 0.0 };
        let spec = self.push(hf.into() + ".weight", gguf.into() + ".weight", &[len]);
        spec.edit = Edit { shift, ..edit };
        spec
    }

    fn globals(&mut self) {
        let (hidden, vocab, n_layers) =
            (self.config.hidden, self.config.vocab, self.config.layers.len() as u64);
        self.push("embed_tokens.weight", "token_embd.weight", &[vocab, hidden]).by_token = true;
        if !self.config.tied {
            self.push("lm_head.weight", "output.weight", &[vocab, hidden]).by_token = true;
        }
        if let Some(input) = self.config.per_layer {
            let width = input.dim * n_layers;
            let table = self.push(
                "embed_tokens_per_layer.weight",
                "per_layer_token_embd.weight",
                &[input.vocab, width],
            );
            table.by_token = true;
            self.push("per_layer_model_projection.weight", "per_layer_model_proj.weight", &[width, hidden]);
            self.norm("per_layer_projection_norm", "per_layer_proj_norm", input.dim, Edit::NONE);
        }
    }

    fn layer(&mut self, i: usize, layer: &Layer) {
        let hidden = self.config.hidden;
        self.attention(i, layer);
        let (hf, gguf) = names(i);
        let width = layer.feed_forward;
        self.norm(hf("pre_feedforward_layernorm"), gguf("ffn_norm"), hidden, Edit::NONE);
        self.push(hf("mlp.gate_proj.weight"), gguf("ffn_gate.weight"), &[width, hidden]);
        self.push(hf("mlp.up_proj.weight"), gguf("ffn_up.weight"), &[width, hidden]);
        self.push(hf("mlp.down_proj.weight"), gguf("ffn_down.weight"), &[hidden, width]);
        self.norm(hf("post_feedforward_layernorm"), gguf("post_ffw_norm"), hidden, Edit::NONE);
        self.experts(i);
        if let Some(input) = self.config.per_layer {
            self.push(hf("per_layer_input_gate.weight"), gguf("inp_gate.weight"), &[input.dim, hidden]);
            self.push(hf("per_layer_projection.weight"), gguf("proj.weight"), &[hidden, input.dim]);
            self.norm(hf("post_per_layer_input_norm"), gguf("post_norm"), hidden, Edit::NONE);
        }
        if self.config.family == Family::Gemma4 {
            self.push(hf("layer_scalar"), gguf("layer_output_scale.weight"), &[1]).required = false;
        }
    }

    fn attention(&mut self, i: usize, layer: &Layer) {
        let config = self.config;
        let (hf, gguf) = names(i);
        let head_dim = config.head_dim(layer);
        let (q, kv) = (config.heads * head_dim, layer.kv_heads * head_dim);
        // Layers that read another layer's keys and values may carry unused projections.
        let own_kv = i < config.own_kv_layers();
        self.norm(hf("input_layernorm"), gguf("attn_norm"), config.hidden, Edit::NONE);
        self.push(hf("self_attn.q_proj.weight"), gguf("attn_q.weight"), &[q, config.hidden]);
        self.push(hf("self_attn.k_proj.weight"), gguf("attn_k.weight"), &[kv, config.hidden]).required =
            own_kv;
        if !layer.value_is_key {
            self.push(hf("self_attn.v_proj.weight"), gguf("attn_v.weight"), &[kv, config.hidden]).required =
                own_kv;
        }
        self.push(hf("self_attn.o_proj.weight"), gguf("attn_output.weight"), &[config.hidden, q]);
        let factor = query_factor(config);
        self.norm(hf("self_attn.q_norm"), gguf("attn_q_norm"), head_dim, Edit { shift: 0.0, factor });
        self.norm(hf("self_attn.k_norm"), gguf("attn_k_norm"), head_dim, Edit::NONE).required = own_kv;
        self.norm(hf("post_attention_layernorm"), gguf("post_attention_norm"), config.hidden, Edit::NONE);
    }

    fn experts(&mut self, i: usize) {
        let Some(experts) = self.config.experts else { return };
        let (hf, gguf) = names(i);
        let (hidden, count, width) = (self.config.hidden, experts.count, experts.feed_forward);
        self.push(hf("router.proj.weight"), gguf("ffn_gate_inp.weight"), &[count, hidden]);
        self.push(hf("router.scale"), gguf("ffn_gate_inp.scale"), &[hidden]);
        self.push(hf("router.per_expert_scale"), gguf("ffn_down_exps.scale"), &[count]);
        self.push(hf("experts.gate_up_proj"), gguf("ffn_gate_up_exps.weight"), &[count, 2 * width, hidden]);
        self.push(hf("experts.down_proj"), gguf("ffn_down_exps.weight"), &[count, hidden, width]);
        self.norm(hf("pre_feedforward_layernorm_2"), gguf("pre_ffw_norm_2"), hidden, Edit::NONE);
        self.norm(hf("post_feedforward_layernorm_1"), gguf("post_ffw_norm_1"), hidden, Edit::NONE);
        self.norm(hf("post_feedforward_layernorm_2"), gguf("post_ffw_norm_2"), hidden, Edit::NONE);
    }
}

/// Makes the names of layer `i`.
fn names(i: usize) -> (impl Fn(&str) -> String, impl Fn(&str) -> String) {
    (move |role: &str| format!("layers.{i}.{role}"), move |role: &str| format!("blk.{i}.{role}"))
}

/// Factor on the query norm that makes up for the attention scale that readers of GGUF derive from the shape.
///
/// They take `head_dim^(-1/2)`, or `(hidden / heads)^(-1/2)` for the model of 62 layers; the checkpoint says
/// `query_pre_attn_scalar^(-1/2)`. The query is normalised and only rotated afterwards, so the ratio can go into the
/// norm's weights.
pub fn query_factor(config: &TextConfig) -> f32 {
    let Some(scalar) = config.query_scalar else { return 1.0 };
    let assumed = if config.layers.len() == 62 { config.hidden / config.heads } else { config.head_dim_full };
    (assumed as f64 / scalar).sqrt() as f32
}
