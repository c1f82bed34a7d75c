//! What kind of model a file holds: sizes, constants and the list of layers, read from metadata and tensors.

use lapidary_backend::{HeadLayout, ValueSource};
use lapidary_gguf::{Gguf, TensorInfo};

use super::metadata::Keys;
use crate::error::{EngineError, Result};

/// Layers, heads, experts and the like are refused beyond these; no released model comes near.
const MAX_LAYERS: usize = 1024;
const MAX_WIDTH: usize = 1 << 20;

/// The model families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Gemma 3 (text).
    Gemma3,
    /// Gemma 4 (text): mixture of experts, dense, per-layer embeddings.
    Gemma4,
}

impl Architecture {
    /// The value of `general.architecture`, which is also the prefix of the family's metadata keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gemma3 => "gemma3",
            Self::Gemma4 => "gemma4",
        }
    }
}

/// Sizes and constants of a model.
#[derive(Clone, Debug)]
pub struct Config {
    /// The family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Positions the model was trained for.
    pub context_length: usize,
    /// Epsilon of every RMS norm.
    pub eps: f32,
    /// `cap` of `cap * tanh(logit / cap)`; absent: logits are used as they are.
    pub softcap: Option<f32>,
    /// Width of a layer's slice of the per-layer embeddings; absent in models without them.
    pub per_layer_dim: Option<usize>,
    /// Rotations in use; [`LayerSpec::rope`] points into it.
    pub ropes: Vec<RopeSpec>,
    /// Shapes of the key/value pools; [`CacheSlot::group`] points into it.
    pub cache_groups: Vec<CacheGroup>,
    /// The layers in order.
    pub layers: Vec<LayerSpec>,
}

/// One layer's shape and constants.
#[derive(Clone, Debug)]
pub struct LayerSpec {
    /// Sliding window; absent in full-attention layers.
    pub window: Option<usize>,
    /// Query, key and value heads.
    pub heads: HeadLayout,
    /// Factor on the attention scores.
    pub attention_scale: f32,
    /// Index into [`Config::ropes`].
    pub rope: usize,
    /// Where the layer's keys and values live.
    pub cache: CacheSlot,
    /// What becomes the layer's values; absent in layers that read another layer's keys and values.
    pub value: Option<ValueSource>,
    /// Width of the dense feed-forward branch.
    pub feed_forward: usize,
    /// The mixture of experts beside the dense branch.
    pub experts: Option<ExpertSpec>,
}

/// The mixture of experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertSpec {
    /// Number of experts.
    pub count: usize,
    /// Experts a row uses.
    pub top_k: usize,
    /// Width of one expert.
    pub feed_forward: usize,
}

/// A layer's place in the key/value cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSlot {
    /// Index into [`Config::cache_groups`].
    pub group: usize,
    /// The layer inside the group's pool.
    pub layer: usize,
}

/// Layers whose keys and values have one shape and one window share a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGroup {
    /// Sliding window; absent: every position is kept.
    pub window: Option<usize>,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Layers that own keys and values here.
    pub layers: usize,
}

/// A rotary embedding: pair `i` turns by `position * base^(-2i/dim) / factor`, divided by `rope_freqs[i]` where
/// the model has them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Elements a head; all of them take part.
    pub dim: usize,
    /// Base of the frequencies.
    pub base: f32,
    /// Linear scaling of positions; 1 means none.
    pub factor: f32,
    /// Whether the model's `rope_freqs` divide the frequencies.
    pub divisors: bool,
}

impl Config {
    /// Reads the configuration of a Gemma model.
    ///
    /// # Errors
    /// When the architecture is not supported, or metadata is missing, of a wrong type, or makes no model.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let architecture = match gguf.metadata().str("general.architecture")? {
            "gemma3" => Architecture::Gemma3,
            "gemma4" => Architecture::Gemma4,
            other => return Err(EngineError::Architecture(other.chars().take(40).collect())),
        };
        let keys = Keys::new(gguf.metadata(), architecture.name());
        let n_layers = keys.size("block_count", 1..=MAX_LAYERS)?;
        let hidden = keys.size("embedding_length", 1..=MAX_WIDTH)?;
        let eps = keys.positive("attention.layer_norm_rms_epsilon")?;
        let vocab = vocabulary_size(gguf, hidden)?;
        let softcap = match (architecture, keys.opt_float("final_logit_softcapping")?) {
            (Architecture::Gemma4, None) => Some(30.0),
            (_, Some(cap)) if cap > 0.0 => Some(cap),
            _ => None,
        };
        let mut builder = Builder {
            gguf,
            keys: &keys,
            architecture,
            n_layers,
            hidden,
            ropes: Vec::new(),
            groups: Vec::new(),
            layers: Vec::with_capacity(n_layers),
        };
        builder.layers()?;
        let (ropes, cache_groups, layers) = (builder.ropes, builder.groups, builder.layers);
        Ok(Self {
            architecture,
            hidden,
            vocab,
            context_length: keys.size("context_length", 1..=u32::MAX as usize)?,
            eps,
            softcap,
            per_layer_dim: keys.opt_size("embedding_length_per_layer_input", MAX_WIDTH)?.filter(|&d| d > 0),
            ropes,
            cache_groups,
            layers,
        })
    }

    /// The largest value of `size` over all layers.
    pub fn max_over_layers(&self, size: impl Fn(&LayerSpec) -> usize) -> usize {
        self.layers.iter().map(size).max().unwrap_or(0)
    }
}

fn vocabulary_size(gguf: &Gguf, hidden: usize) -> Result<usize> {
    const NAME: &str = "token_embd.weight";
    let table = gguf.tensor(NAME).ok_or_else(|| EngineError::MissingTensor(NAME.into()))?;
    match table.shape() {
        [cols, rows] if *cols == hidden as u64 && (1..=u64::from(u32::MAX)).contains(rows) => {
            Ok(*rows as usize)
        }
        found => Err(EngineError::TensorShape {
            name: NAME.into(),
            found: format!("{found:?}"),
            expected: format!("[{hidden}, vocabulary]"),
        }),
    }
}

/// Builds the layer list one layer at a time, collecting the distinct rotations and cache groups.
struct Builder<'a> {
    gguf: &'a Gguf,
    keys: &'a Keys<'a>,
    architecture: Architecture,
    n_layers: usize,
    hidden: usize,
    ropes: Vec<RopeSpec>,
    groups: Vec<CacheGroup>,
    layers: Vec<LayerSpec>,
}

impl Builder<'_> {
    fn layers(&mut self) -> Result<()> {
        let keys = self.keys;
        let windows = self.windows()?;
        let heads = keys.per_layer("attention.head_count", self.n_layers, None)?;
        let kv_heads = keys.per_layer("attention.head_count_kv", self.n_layers, Some(&heads))?;
        let feed_forward = keys.per_layer("feed_forward_length", self.n_layers, None)?;
        let shared = keys.opt_size("attention.shared_kv_layers", self.n_layers)?.unwrap_or(0);
        let n_own = self.n_layers - shared;
        for i in 0..self.n_layers {
            let window = windows[i];
            let head_dim = self.head_dim(window.is_some(), heads[i])?;
            if kv_heads[i] == 0 || !heads[i].is_multiple_of(kv_heads[i]) {
                let problem = format!("layer {i} has {} key/value heads for {} heads", kv_heads[i], heads[i]);
                return Err(EngineError::metadata(keys.name("attention.head_count_kv"), problem));
            }
            let layout = HeadLayout { heads: heads[i], kv_heads: kv_heads[i], head_dim };
            let (cache, value) = if i < n_own {
                (self.own_slot(window, layout), Some(self.value_source(i)))
            } else {
                (self.shared_slot(window, layout, n_own)?, None)
            };
            let rope = self.rope(window.is_some(), head_dim)?;
            let spec = LayerSpec {
                window,
                heads: layout,
                attention_scale: self.attention_scale(layout),
                rope,
                cache,
                value,
                feed_forward: feed_forward[i],
                experts: self.experts(i)?,
            };
            self.layers.push(spec);
        }
        Ok(())
    }

    /// The window of each layer; `None` marks full attention.
    fn windows(&self) -> Result<Vec<Option<usize>>> {
        let window = self.keys.opt_size("attention.sliding_window", u32::MAX as usize)?.filter(|&w| w > 0);
        if window.is_none() && self.architecture == Architecture::Gemma4 {
            return Err(EngineError::metadata(self.keys.name("attention.sliding_window"), "missing or zero"));
        }
        let sliding = self.keys.sliding_pattern("attention.sliding_window_pattern", self.n_layers)?;
        let sliding = match (sliding, self.architecture) {
            (Some(pattern), _) => pattern,
            (None, Architecture::Gemma3) => (0..self.n_layers).map(|i| i % 6 != 5).collect(),
            (None, Architecture::Gemma4) => {
                return Err(EngineError::metadata(
                    self.keys.name("attention.sliding_window_pattern"),
                    "missing",
                ));
            }
        };
        Ok(sliding.into_iter().map(|s| window.filter(|_| s)).collect())
    }

    fn head_dim(&self, sliding: bool, heads: usize) -> Result<usize> {
        let default = self.hidden / heads.max(1);
        let mut found = [0; 2];
        for (slot, role) in found.iter_mut().zip(["key_length", "value_length"]) {
            let full = self.keys.opt_size(&format!("attention.{role}"), MAX_WIDTH)?.unwrap_or(default);
            let swa = self.keys.opt_size(&format!("attention.{role}_swa"), MAX_WIDTH)?.unwrap_or(full);
            *slot = if sliding { swa } else { full };
        }
        let [key, value] = found;
        if key != value || key == 0 || !key.is_multiple_of(2) {
            let problem =
                format!("key length {key} and value length {value} must be equal, even and not zero");
            return Err(EngineError::metadata(self.keys.name("attention.key_length"), problem));
        }
        Ok(key)
    }

    fn attention_scale(&self, layout: HeadLayout) -> f32 {
        match self.architecture {
            Architecture::Gemma4 => 1.0,
            // The 27B model alone divides by the width a head would have without an explicit head size.
            Architecture::Gemma3 if self.n_layers == 62 => {
                1.0 / (self.hidden as f32 / layout.heads as f32).sqrt()
            }
            Architecture::Gemma3 => 1.0 / (layout.head_dim as f32).sqrt(),
        }
    }

    fn value_source(&self, layer: usize) -> ValueSource {
        let has = |role: &str| self.tensor(layer, role).is_some();
        match self.architecture {
            Architecture::Gemma3 => ValueSource::Projected,
            Architecture::Gemma4 if has("attn_v") || has("attn_qkv") => ValueSource::ProjectedNormed,
            Architecture::Gemma4 => ValueSource::KeyNormed,
        }
    }

    fn own_slot(&mut self, window: Option<usize>, layout: HeadLayout) -> CacheSlot {
        let group = self.group(window, layout).unwrap_or_else(|| {
            let HeadLayout { kv_heads, head_dim, .. } = layout;
            self.groups.push(CacheGroup { window, kv_heads, head_dim, layers: 0 });
            self.groups.len() - 1
        });
        let layer = self.groups[group].layers;
        self.groups[group].layers += 1;
        CacheSlot { group, layer }
    }

    fn group(&self, window: Option<usize>, layout: HeadLayout) -> Option<usize> {
        self.groups.iter().position(|g| {
            g.window == window && g.kv_heads == layout.kv_heads && g.head_dim == layout.head_dim
        })
    }

    /// A layer without keys and values of its own reads those of the last layer of its kind that has them.
    fn shared_slot(&self, window: Option<usize>, layout: HeadLayout, n_own: usize) -> Result<CacheSlot> {
        let source = self.layers[..n_own].iter().rposition(|l| l.window == window);
        let source = source.map(|i| &self.layers[i]).ok_or_else(|| {
            let problem = "no earlier layer of the same kind owns keys and values";
            EngineError::metadata(self.keys.name("attention.shared_kv_layers"), problem)
        })?;
        let of = source.heads;
        if (of.kv_heads, of.head_dim) != (layout.kv_heads, layout.head_dim) {
            let problem = format!("a sharing layer has heads {layout:?}, its source {of:?}");
            return Err(EngineError::metadata(self.keys.name("attention.shared_kv_layers"), problem));
        }
        Ok(source.cache)
    }

    fn rope(&mut self, sliding: bool, dim: usize) -> Result<usize> {
        let key = if sliding { "rope.dimension_count_swa" } else { "rope.dimension_count" };
        let rotated = match self.keys.opt_size(key, MAX_WIDTH)? {
            None if sliding => self.keys.opt_size("rope.dimension_count", MAX_WIDTH)?.filter(|&d| d <= dim),
            found => found,
        };
        if rotated.is_some_and(|r| r != dim) {
            let problem = format!("{} rotated dimensions of {dim} are not supported", rotated.unwrap_or(0));
            return Err(EngineError::metadata(self.keys.name(key), problem));
        }
        let spec = if sliding {
            let base = self.keys.opt_float("rope.freq_base_swa")?.unwrap_or(10_000.0);
            RopeSpec { dim, base, factor: 1.0, divisors: false }
        } else {
            RopeSpec {
                dim,
                base: self.keys.opt_float("rope.freq_base")?.unwrap_or(10_000.0),
                factor: self.linear_factor()?,
                divisors: self.architecture == Architecture::Gemma4,
            }
        };
        if !(spec.base > 0.0 && spec.base.is_finite()) {
            return Err(EngineError::metadata(self.keys.name("rope.freq_base"), "must be positive"));
        }
        Ok(self.ropes.iter().position(|r| *r == spec).unwrap_or_else(|| {
            self.ropes.push(spec);
            self.ropes.len() - 1
        }))
    }

    fn linear_factor(&self) -> Result<f32> {
        let kind = self.keys.opt_str("rope.scaling.type")?.unwrap_or("linear");
        let factor = match self.keys.opt_float("rope.scaling.factor")? {
            None => self.keys.opt_float("rope.scale_linear")?,
            found => found,
        };
        let factor = factor.filter(|&f| f != 0.0).unwrap_or(1.0);
        match kind {
            "none" => Ok(1.0),
            "linear" if factor > 0.0 && factor.is_finite() => Ok(factor),
            "linear" => Err(EngineError::metadata(self.keys.name("rope.scaling.factor"), "must be positive")),
            other if factor == 1.0 => {
                // A scaling of factor 1 changes nothing, whatever its kind.
                let _ = other;
                Ok(1.0)
            }
            other => {
                let problem = format!("scaling '{other}' is not one that Gemma uses (linear, none)");
                Err(EngineError::metadata(self.keys.name("rope.scaling.type"), problem))
            }
        }
    }

    /// A layer is a mixture of experts exactly when its router is in the file.
    fn experts(&self, layer: usize) -> Result<Option<ExpertSpec>> {
        if self.tensor(layer, "ffn_gate_inp").is_none() {
            return Ok(None);
        }
        let count = self.keys.size("expert_count", 1..=MAX_WIDTH)?;
        let widths = self.keys.per_layer("expert_feed_forward_length", self.n_layers, None)?;
        let top_k = self.keys.per_layer("expert_used_count", self.n_layers, None)?[layer];
        if top_k == 0 || top_k > count {
            let problem = format!("{top_k} of {count} experts");
            return Err(EngineError::metadata(self.keys.name("expert_used_count"), problem));
        }
        Ok(Some(ExpertSpec { count, top_k, feed_forward: widths[layer] }))
    }

    fn tensor(&self, layer: usize, role: &str) -> Option<&TensorInfo> {
        self.gguf.tensor(&format!("blk.{layer}.{role}.weight"))
    }
}
