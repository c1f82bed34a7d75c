//! The text model that a `config.json` describes.
//!
//! Read in all forms in circulation: flat or nested in `text_config`; head sizes of full layers in `global_head_dim`
//! and `num_global_key_value_heads` or in `per_layer_config`; rotation in `rope_parameters` per kind of layer, or in
//! `rope_theta`, `rope_local_base_freq` and `rope_scaling`. What a field means when it is absent is taken from the
//! configuration classes of Hugging Face transformers.

use super::fields::Fields;
use crate::error::{ConvertError, Result};

/// The model families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Gemma3,
    Gemma4,
}

impl Family {
    /// `general.architecture` and the prefix of the metadata keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gemma3 => "gemma3",
            Self::Gemma4 => "gemma4",
        }
    }
}

/// A Gemma text model.
#[derive(Clone, Debug)]
pub struct TextConfig {
    pub family: Family,
    pub hidden: u64,
    pub vocab: u64,
    pub context: u64,
    pub eps: f64,
    pub heads: u64,
    /// Elements of a head in sliding layers.
    pub head_dim_sliding: u64,
    /// Elements of a head in full layers.
    pub head_dim_full: u64,
    pub window: u64,
    /// Whether the embedding table is the output matrix too.
    pub tied: bool,
    pub softcap: Option<f64>,
    /// Gemma 3: the attention scale is this to the power of -1/2.
    pub query_scalar: Option<f64>,
    pub rope_sliding: Rope,
    pub rope_full: Rope,
    /// The last layers, which read the keys and values of others.
    pub shared_kv: u64,
    pub per_layer: Option<PerLayerInput>,
    pub experts: Option<Experts>,
    pub layers: Vec<Layer>,
}

/// One layer.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    pub sliding: bool,
    pub kv_heads: u64,
    pub feed_forward: u64,
    /// Values are the raw keys: there is no value projection.
    pub value_is_key: bool,
}

/// A rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    pub theta: f64,
    /// Linear scaling of positions; 1 means none.
    pub factor: f64,
    /// Part of the pairs that turn.
    pub rotated: f64,
}

/// The mixture of experts beside every dense feed-forward.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    pub count: u64,
    pub used: u64,
    pub feed_forward: u64,
}

/// Per-layer embeddings.
#[derive(Clone, Copy, Debug)]
pub struct PerLayerInput {
    pub dim: u64,
    pub vocab: u64,
}

impl TextConfig {
    /// Reads a configuration.
    ///
    /// # Errors
    /// When the model is of another family, a field is missing, of a wrong type, or asks for something that GGUF
    /// cannot state.
    pub fn from_fields(fields: &Fields) -> Result<Self> {
        let family = family(fields)?;
        refuse_unsupported(fields)?;
        let n_layers = fields.count("num_hidden_layers")?;
        if n_layers > 1024 {
            return Err(
                fields.problem(format!("'num_hidden_layers' is {n_layers}; at most 1024 are converted"))
            );
        }
        let sliding = sliding_layers(fields, family, n_layers as usize)?;
        let shared_kv = fields.opt_count("num_kv_shared_layers")?.unwrap_or(0);
        if shared_kv >= n_layers {
            return Err(fields.problem(format!("'num_kv_shared_layers' is {shared_kv} of {n_layers} layers")));
        }
        let heads = fields.count_or("num_attention_heads", 8)?;
        let head_dim = fields.count_or("head_dim", 256)?;
        let overrides = LayerOverrides::read(fields, n_layers as usize)?;
        let [rope_sliding, rope_full] = ropes(fields, family)?;
        let mut config = Self {
            family,
            hidden: fields.count("hidden_size")?,
            vocab: fields.count_or("vocab_size", if family == Family::Gemma3 { 262_208 } else { 262_144 })?,
            context: fields.count_or("max_position_embeddings", 131_072)?,
            eps: fields.opt_number("rms_norm_eps")?.unwrap_or(1e-6),
            heads,
            head_dim_sliding: head_dim,
            head_dim_full: fields.count_or("global_head_dim", head_dim)?,
            window: fields.count_or("sliding_window", if family == Family::Gemma3 { 4096 } else { 512 })?,
            tied: fields.get("tie_word_embeddings").is_none() || fields.flag("tie_word_embeddings")?,
            softcap: fields.opt_number("final_logit_softcapping")?.filter(|&cap| cap > 0.0),
            query_scalar: match family {
                Family::Gemma3 => Some(fields.opt_number("query_pre_attn_scalar")?.unwrap_or(256.0)),
                Family::Gemma4 => None,
            },
            rope_sliding,
            rope_full,
            shared_kv,
            per_layer: per_layer_input(fields)?,
            experts: experts(fields)?,
            layers: layers(fields, family, &sliding, shared_kv)?,
        };
        overrides.apply(&mut config, fields)?;
        Ok(config)
    }

    /// Elements of a head of a layer.
    pub fn head_dim(&self, layer: &Layer) -> u64 {
        if layer.sliding { self.head_dim_sliding } else { self.head_dim_full }
    }

    /// Layers with keys and values of their own.
    pub fn own_kv_layers(&self) -> usize {
        self.layers.len() - self.shared_kv as usize
    }

    /// Whether some layer attends to every position.
    pub fn has_full_layer(&self) -> bool {
        self.layers.iter().any(|l| !l.sliding)
    }
}

fn family(fields: &Fields) -> Result<Family> {
    let model_type = fields.opt_str("model_type")?.unwrap_or_default();
    // Released multimodal configurations name the text part; embedding and draft models have names of their own.
    match model_type {
        "gemma3_text" | "gemma3" => return Ok(Family::Gemma3),
        "gemma4_text" | "gemma4" | "gemma4_unified" | "gemma4_unified_text" => return Ok(Family::Gemma4),
        _ => {}
    }
    let architectures = fields.opt_strings("architectures")?.unwrap_or_default();
    match architectures.first() {
        Some(&("Gemma3ForCausalLM" | "Gemma3ForConditionalGeneration")) if model_type.is_empty() => {
            Ok(Family::Gemma3)
        }
        Some(&("Gemma4ForCausalLM" | "Gemma4ForConditionalGeneration")) if model_type.is_empty() => {
            Ok(Family::Gemma4)
        }
        first => {
            let found =
                if model_type.is_empty() { first.copied().unwrap_or("no model_type") } else { model_type };
            Err(ConvertError::Architecture { path: fields.path().to_owned(), found: format!("'{found}'") })
        }
    }
}

/// Settings that neither GGUF nor the engine can express must not be dropped in silence.
fn refuse_unsupported(fields: &Fields) -> Result<()> {
    if fields.flag("attention_bias")? {
        return Err(fields.problem("'attention_bias' is true; Gemma models have no such biases"));
    }
    if let Some(cap) = fields.opt_number("attn_logit_softcapping")? {
        return Err(
            fields.problem(format!("'attn_logit_softcapping' is {cap}, which Gemma 3 and 4 do not have"))
        );
    }
    match fields.opt_str("hidden_activation")?.unwrap_or("gelu_pytorch_tanh") {
        "gelu_pytorch_tanh" => Ok(()),
        other => Err(fields.problem(format!("'hidden_activation' is {other}, expected gelu_pytorch_tanh"))),
    }
}

fn sliding_layers(fields: &Fields, family: Family, n_layers: usize) -> Result<Vec<bool>> {
    if let Some(types) = fields.opt_strings("layer_types")? {
        if types.len() != n_layers {
            return Err(
                fields.problem(format!("'layer_types' has {} entries for {n_layers} layers", types.len()))
            );
        }
        let parse = |&kind: &&str| match kind {
            "sliding_attention" => Ok(true),
            "full_attention" => Ok(false),
            other => {
                Err(fields.problem(format!("'layer_types' names {other}, which Gemma models do not have")))
            }
        };
        return types.iter().map(parse).collect();
    }
    let key = if fields.get("sliding_window_pattern").is_some() {
        "sliding_window_pattern"
    } else {
        "_sliding_window_pattern"
    };
    let period = fields.count_or(key, 6)? as usize;
    let mut sliding: Vec<bool> = (1..=n_layers).map(|i| !i.is_multiple_of(period)).collect();
    if family == Family::Gemma4 {
        sliding[n_layers - 1] = false;
    }
    Ok(sliding)
}

fn layers(fields: &Fields, family: Family, sliding: &[bool], shared_kv: u64) -> Result<Vec<Layer>> {
    let feed_forward = fields.count("intermediate_size")?;
    let kv_heads = fields.count_or("num_key_value_heads", 4)?;
    let value_is_key = family == Family::Gemma4 && fields.flag("attention_k_eq_v")?;
    let global_kv_heads =
        if value_is_key { fields.count_or("num_global_key_value_heads", kv_heads)? } else { kv_heads };
    let double_wide = fields.flag("use_double_wide_mlp")?;
    let first_shared = sliding.len() - shared_kv as usize;
    let layer = |(i, &sliding): (usize, &bool)| Layer {
        sliding,
        kv_heads: if sliding { kv_heads } else { global_kv_heads },
        feed_forward: if double_wide && i >= first_shared { 2 * feed_forward } else { feed_forward },
        value_is_key: value_is_key && !sliding,
    };
    Ok(sliding.iter().enumerate().map(layer).collect())
}

fn experts(fields: &Fields) -> Result<Option<Experts>> {
    if !fields.flag("enable_moe_block")? {
        return Ok(None);
    }
    let width = if fields.get("moe_intermediate_size").is_some() {
        "moe_intermediate_size"
    } else {
        "expert_intermediate_size"
    };
    let experts = Experts {
        count: fields.count("num_experts")?,
        used: fields.count("top_k_experts")?,
        feed_forward: fields.count(width)?,
    };
    if experts.used > experts.count {
        return Err(
            fields.problem(format!("'top_k_experts' is {} of {} experts", experts.used, experts.count))
        );
    }
    Ok(Some(experts))
}

fn per_layer_input(fields: &Fields) -> Result<Option<PerLayerInput>> {
    let Some(dim) = fields.opt_count("hidden_size_per_layer_input")?.filter(|&d| d > 0) else {
        return Ok(None);
    };
    let vocab = fields.count_or("vocab_size_per_layer_input", fields.count_or("vocab_size", 262_144)?)?;
    Ok(Some(PerLayerInput { dim, vocab }))
}

/// Rotation of sliding and of full layers.
fn ropes(fields: &Fields, family: Family) -> Result<[Rope; 2]> {
    let parameters = fields.nested("rope_parameters")?;
    let of_kind = |kind: &str| parameters.as_ref().map(|p| p.nested(kind)).transpose().map(Option::flatten);
    let (sliding, full) = (of_kind("sliding_attention")?, of_kind("full_attention")?);
    let old_full = match (&full, &parameters) {
        (None, Some(_)) => parameters,
        (None, None) => fields.nested("rope_scaling")?,
        _ => None,
    };
    let theta = fields.opt_number("rope_theta")?.unwrap_or(1_000_000.0);
    let local = fields.opt_number("rope_local_base_freq")?.unwrap_or(10_000.0);
    let full_fields = full.as_ref().or(old_full.as_ref());
    let mut full_rope = rope(full_fields, theta, family)?;
    if full_fields.is_none() && family == Family::Gemma4 {
        full_rope.rotated = 0.25;
    }
    Ok([rope(sliding.as_ref(), local, family)?, full_rope])
}

fn rope(fields: Option<&Fields>, default_theta: f64, family: Family) -> Result<Rope> {
    let mut rope = Rope { theta: default_theta, factor: 1.0, rotated: 1.0 };
    let Some(fields) = fields else { return Ok(rope) };
    rope.theta = fields.opt_number("rope_theta")?.unwrap_or(default_theta);
    let kind = match fields.opt_str("rope_type")? {
        Some(kind) => kind,
        None => fields.opt_str("type")?.unwrap_or("default"),
    };
    match (kind, family) {
        ("default", _) => {}
        ("linear", _) => rope.factor = fields.opt_number("factor")?.unwrap_or(1.0),
        ("proportional", Family::Gemma4) => {
            rope.rotated = fields.opt_number("partial_rotary_factor")?.unwrap_or(1.0);
            rope.factor = fields.opt_number("factor")?.unwrap_or(1.0);
        }
        (other, _) => {
            let known = if family == Family::Gemma4 {
                "default, linear and proportional"
            } else {
                "default and linear"
            };
            return Err(fields
                .problem(format!("rope_type '{other}' is not known for {}; {known} are", family.name())));
        }
    }
    let positive = rope.theta > 0.0 && rope.factor > 0.0 && rope.rotated > 0.0 && rope.rotated <= 1.0;
    if positive { Ok(rope) } else { Err(fields.problem(format!("the rotation {rope:?} makes no sense"))) }
}

/// What `per_layer_config` says of single layers.
struct LayerOverrides(Vec<(usize, Fields)>);

impl LayerOverrides {
    fn read(fields: &Fields, n_layers: usize) -> Result<Self> {
        const KNOWN: [&str; 3] = ["head_dim", "num_key_value_heads", "intermediate_size"];
        let Some(all) = fields.nested("per_layer_config")? else { return Ok(Self(Vec::new())) };
        let mut overrides = Vec::new();
        for key in all.keys() {
            let problem = |what: String| fields.problem(format!("'per_layer_config' {what}"));
            let index = key.parse().ok().filter(|&i: &usize| i < n_layers);
            let index = index.ok_or_else(|| problem(format!("names layer {key} of {n_layers}")))?;
            let Some(layer) = all.nested(key)? else { continue };
            if let Some(other) = layer.keys().find(|k| !KNOWN.contains(&k.as_str())) {
                return Err(problem(format!(
                    "of layer {key} sets '{other}'; known are {}",
                    KNOWN.join(", ")
                )));
            }
            overrides.push((index, layer));
        }
        Ok(Self(overrides))
    }

    fn apply(&self, config: &mut TextConfig, fields: &Fields) -> Result<()> {
        let mut head_dims: Vec<u64> = config.layers.iter().map(|l| config.head_dim(l)).collect();
        for (index, layer) in &self.0 {
            let target = &mut config.layers[*index];
            target.kv_heads = layer.count_or("num_key_value_heads", target.kv_heads)?;
            target.feed_forward = layer.count_or("intermediate_size", target.feed_forward)?;
            head_dims[*index] = layer.count_or("head_dim", head_dims[*index])?;
        }
        // GGUF states one head size for sliding layers and one for full ones.
        for (sliding, slot) in [(true, &mut config.head_dim_sliding), (false, &mut config.head_dim_full)] {
            let mut dims =
                config.layers.iter().zip(&head_dims).filter(|(l, _)| l.sliding == sliding).map(|(_, &d)| d);
            let Some(first) = dims.next() else { continue };
            if let Some(other) = dims.find(|&d| d != first) {
                let kind = if sliding { "sliding" } else { "full" };
                let problem = format!(
                    "{kind} layers have heads of {first} and of {other} elements; GGUF can state one size"
                );
                return Err(fields.problem(problem));
            }
            *slot = first;
        }
        Ok(())
    }
}
