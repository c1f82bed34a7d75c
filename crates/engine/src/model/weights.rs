//! The weights of a model on a device, and how they are read from a file.

use lapidary_backend::{Backend, MatrixData};
use lapidary_gguf::{Gguf, TensorInfo, block};

use super::balance::{key_factors, row_sizes};
use super::config::{CacheSlot, Config, ExpertSpec, LayerSpec};
use super::head::{Head, HeadOptions};
use super::screening::Screening;
use crate::error::{EngineError, Result};

/// All weights of a model.
pub struct Weights<B: Backend> {
    /// Embedding table `[vocab, hidden]`, also the output matrix of tied models.
    pub token_embd: B::Matrix,
    /// Output matrix of models that do not tie it.
    pub output: Option<B::Matrix>,
    /// The output matrix in another format than the file's.
    pub head: Option<Head<B>>,
    /// The coarse copy of a native output matrix that finds the largest logits.
    pub(super) screening: Option<Screening>,
    /// Final norm.
    pub output_norm: B::Buffer,
    /// Per-layer embeddings.
    pub per_layer: Option<PerLayerInputs<B>>,
    /// The layers.
    pub layers: Vec<Layer<B>>,
    /// Frequencies of each of [`Config::ropes`], `[dim / 2]`.
    pub rope_frequencies: Vec<B::Buffer>,
}

/// What all layers share of the per-layer embeddings.
pub struct PerLayerInputs<B: Backend> {
    /// `[vocab, layers * dim]`.
    pub token_embd: B::Matrix,
    /// `[layers * dim, hidden]`.
    pub model_proj: B::Matrix,
    /// `[dim]`.
    pub proj_norm: B::Buffer,
    /// `1/sqrt(2)`, the factor on the sum of token part and projected part.
    pub input_scale: B::Buffer,
}

/// The weights of one layer. What a layer does not have is absent.
pub struct Layer<B: Backend> {
    /// Norm before attention.
    pub attn_norm: B::Buffer,
    /// Query, key and value projections whose outputs stand side by side: one fused matrix, or two to three, or
    /// the query's alone in layers that read another layer's cache.
    pub qkv: Vec<B::Matrix>,
    /// `[head_dim]`, divided by the [factors](super::balance) of the keys it meets.
    pub q_norm: B::Buffer,
    /// `[head_dim]`, times those factors; absent in layers that read another layer's cache.
    pub k_norm: Option<B::Buffer>,
    /// `[hidden, heads * head_dim]`.
    pub attn_output: B::Matrix,
    /// Norm of the attention branch.
    pub post_attention_norm: B::Buffer,
    /// Dense feed-forward branch.
    pub dense: FeedForward<B>,
    /// Mixture of experts beside it.
    pub experts: Option<Experts<B>>,
    /// Norm of the feed-forward branch.
    pub post_ffw_norm: B::Buffer,
    /// Injection of the per-layer embeddings.
    pub per_layer: Option<PerLayer<B>>,
    /// Factor on the layer's output, one value or `[hidden]`.
    pub output_scale: Option<B::Buffer>,
}

/// Gate, up and down projections.
pub struct FeedForward<B: Backend> {
    /// Norm before the branch.
    pub norm: B::Buffer,
    /// Gate and up, `[width, hidden]` each.
    pub gate_up: [B::Matrix; 2],
    /// `[hidden, width]`.
    pub down: B::Matrix,
}

/// Router and stacked experts.
pub struct Experts<B: Backend> {
    /// Sizes.
    pub spec: ExpertSpec,
    /// Router matrix `[count, hidden]`.
    pub router: B::Matrix,
    /// Factor on the router's normalised input, `[hidden]`, with `1/sqrt(hidden)` folded in.
    pub router_scale: B::Buffer,
    /// Factor on each expert's output, `[count]`.
    pub expert_scale: Option<B::Buffer>,
    /// Norm before the experts.
    pub norm: B::Buffer,
    /// Norm of the dense branch's output.
    pub dense_post_norm: B::Buffer,
    /// Norm of the experts' output.
    pub post_norm: B::Buffer,
    /// One stacked matrix `[count, 2 * width, hidden]` with the gate's rows first, or gate and up apart.
    pub gate_up: Vec<B::Matrix>,
    /// `[count, hidden, width]`.
    pub down: B::Matrix,
}

/// A layer's part of the per-layer embeddings.
pub struct PerLayer<B: Backend> {
    /// `[dim, hidden]`.
    pub gate: B::Matrix,
    /// `[hidden, dim]`.
    pub proj: B::Matrix,
    /// `[hidden]`.
    pub post_norm: B::Buffer,
}

/// Told after each layer how many of how many are loaded.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

impl<B: Backend> Weights<B> {
    /// Reads all weights.
    ///
    /// # Errors
    /// When a tensor is missing, of a wrong shape or type, or the device refuses it.
    pub fn load(
        gguf: &Gguf,
        config: &Config,
        head: &HeadOptions,
        backend: &B,
        progress: Progress,
    ) -> Result<Self> {
        let loader = Loader { gguf, config, backend };
        let (hidden, vocab, n_layers) = (config.hidden, config.vocab, config.layers.len());
        let output = loader.has("output.weight").then(|| loader.matrix("output.weight", vocab, hidden));
        let per_layer = config.per_layer_dim.map(|dim| loader.per_layer_inputs(dim)).transpose()?;
        let mut layers = Vec::with_capacity(n_layers);
        for (i, spec) in config.layers.iter().enumerate() {
            layers.push(loader.layer(i, spec)?);
            progress(i + 1, n_layers);
        }
        let (token_embd, output) = (loader.matrix("token_embd.weight", vocab, hidden)?, output.transpose()?);
        let stored = loader.stored_head()?;
        let requantised = Head::load(gguf, stored, head, backend)?;
        let screening = match requantised {
            Some(_) => None,
            None => {
                let matrix = output.as_ref().unwrap_or(&token_embd);
                // What the final norm makes of a row of random direction.
                let squares = loader.floats("output_norm.weight", hidden)?.iter().map(|w| w * w).collect();
                let bytes = stored.bytes().unwrap_or(0) as usize;
                Screening::new(backend, matrix, bytes, squares, head.screen)?
            }
        };
        Ok(Self {
            token_embd,
            output,
            head: requantised,
            screening,
            output_norm: loader.vector("output_norm.weight", hidden)?,
            per_layer,
            layers,
            rope_frequencies: loader.rope_frequencies()?,
        })
    }
}

impl<B: Backend> Weights<B> {
    /// The output matrix as the file has it.
    pub(super) fn stored_head(&self) -> &B::Matrix {
        self.output.as_ref().unwrap_or(&self.token_embd)
    }
}

/// The projection that makes queries, or keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Projection {
    Query,
    Key,
}

struct Loader<'a, B> {
    gguf: &'a Gguf,
    config: &'a Config,
    backend: &'a B,
}

impl<B: Backend> Loader<'_, B> {
    fn layer(&self, i: usize, spec: &LayerSpec) -> Result<Layer<B>> {
        let hidden = self.config.hidden;
        let name = |role: &str| format!("blk.{i}.{role}.weight");
        let vector = |role: &str, len: usize| self.vector(&name(role), len);
        let matrix = |role: &str, rows: usize, cols: usize| self.matrix(&name(role), rows, cols);
        let heads = spec.heads;
        let (q_norm, k_norm) = self.head_norms(i, spec)?;
        Ok(Layer {
            attn_norm: vector("attn_norm", hidden)?,
            qkv: self.qkv(i, spec)?,
            q_norm,
            k_norm,
            attn_output: matrix("attn_output", hidden, heads.heads * heads.head_dim)?,
            post_attention_norm: vector("post_attention_norm", hidden)?,
            dense: FeedForward {
                norm: vector("ffn_norm", hidden)?,
                gate_up: [
                    matrix("ffn_gate", spec.feed_forward, hidden)?,
                    matrix("ffn_up", spec.feed_forward, hidden)?,
                ],
                down: matrix("ffn_down", hidden, spec.feed_forward)?,
            },
            experts: spec.experts.map(|experts| self.experts(i, experts)).transpose()?,
            post_ffw_norm: vector("post_ffw_norm", hidden)?,
            per_layer: self
                .config
                .per_layer_dim
                .map(|dim| -> Result<_> {
                    Ok(PerLayer {
                        gate: matrix("inp_gate", dim, hidden)?,
                        proj: matrix("proj", hidden, dim)?,
                        post_norm: vector("post_norm", hidden)?,
                    })
                })
                .transpose()?,
            output_scale: self.output_scale(&name("layer_output_scale"))?,
        })
    }

    /// The norms of queries and keys, balanced against each other.
    fn head_norms(&self, i: usize, spec: &LayerSpec) -> Result<(B::Buffer, Option<B::Buffer>)> {
        let norm = |i: usize, role: &str| {
            self.floats(&format!("blk.{i}.{role}.weight"), self.config.layers[i].heads.head_dim)
        };
        let sizes = |i: usize, role: &str, projection: Projection| -> Result<Vec<f32>> {
            let rows = self.row_sizes(i, projection)?;
            Ok(norm(i, role)?.iter().zip(rows).map(|(norm, row)| norm * row).collect())
        };
        let (owner, readers) = self.cache_users(spec.cache);
        let queries = readers.into_iter().map(|r| sizes(r, "attn_q_norm", Projection::Query));
        let queries = queries.collect::<Result<Vec<_>>>()?;
        let factors = key_factors(&queries, &sizes(owner, "attn_k_norm", Projection::Key)?);
        let mut key = norm(owner, "attn_k_norm")?;
        let mut query = norm(i, "attn_q_norm")?;
        query.iter_mut().zip(&factors).for_each(|(q, f)| *q /= f);
        key.iter_mut().zip(&factors).for_each(|(k, f)| *k *= f);
        let key = spec.value.map(|_| self.upload(&key)).transpose()?;
        Ok((self.upload(&query)?, key))
    }

    /// Sizes of the elements of a layer's queries or keys before their norm's weights, from the first columns of their
    /// rows.
    fn row_sizes(&self, i: usize, projection: Projection) -> Result<Vec<f32>> {
        /// Columns that are looked at: a sample, since a large model has gigabytes of rows.
        const COLUMNS: usize = 256;
        let (hidden, spec) = (self.config.hidden, &self.config.layers[i]);
        let heads = spec.heads;
        let (q, kv) = (heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim);
        let name = |role: &str| format!("blk.{i}.{role}.weight");
        let (tensor, n_rows, first) = match projection {
            _ if self.has(&name("attn_qkv")) => {
                let first = if projection == Projection::Query { 0 } else { q };
                (name("attn_qkv"), q + 2 * kv, first)
            }
            Projection::Query => (name("attn_q"), q, 0),
            Projection::Key => (name("attn_k"), kv, 0),
        };
        let info = self.find(&tensor, &[hidden, n_rows])?;
        let (ty, bytes) = (info.ty()?, self.gguf.data(info)?);
        let columns = COLUMNS.max(ty.block_len()).min(hidden);
        let problem = |problem: String| EngineError::tensor(&tensor, problem);
        let sizes = ty.row_bytes(hidden).zip(ty.row_bytes(columns));
        let (row_bytes, sample) =
            sizes.ok_or_else(|| problem(format!("rows of {hidden} do not fit {ty}")))?;
        let input = self.floats(&name("attn_norm"), hidden)?;
        let mut values = vec![0.0; columns];
        let n = if projection == Projection::Query { q } else { kv };
        let mut squares = Vec::with_capacity(n);
        for row in first..first + n {
            let begin = row * row_bytes;
            block::dequantize(ty, &bytes[begin..begin + sample], &mut values)
                .map_err(|e| problem(e.to_string()))?;
            squares.push(values.iter().zip(&input).map(|(w, x)| (w * x) * (w * x)).sum());
        }
        Ok(row_sizes(&squares, heads.head_dim))
    }

    /// The layer that fills a place in the cache, and all that read it.
    fn cache_users(&self, slot: CacheSlot) -> (usize, Vec<usize>) {
        let layers = &self.config.layers;
        let readers: Vec<usize> = (0..layers.len()).filter(|&i| layers[i].cache == slot).collect();
        let owner = readers.iter().copied().find(|&i| layers[i].value.is_some());
        (owner.expect("every place in the cache has a layer that fills it"), readers)
    }

    /// The projections, in the order of [`HeadLayout`](lapidary_backend::HeadLayout)'s columns.
    fn qkv(&self, i: usize, spec: &LayerSpec) -> Result<Vec<B::Matrix>> {
        use lapidary_backend::ValueSource::KeyNormed;
        let hidden = self.config.hidden;
        let name = |role: &str| format!("blk.{i}.{role}.weight");
        let heads = spec.heads;
        let (q, kv) = (heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim);
        let fused = name("attn_qkv");
        if self.has(&fused) {
            if spec.value.is_some() {
                return Ok(vec![self.matrix(&fused, q + 2 * kv, hidden)?]);
            }
            return Err(EngineError::tensor(fused, "a layer without a cache of its own cannot have it"));
        }
        let mut parts = vec![self.matrix(&name("attn_q"), q, hidden)?];
        if let Some(value) = spec.value {
            parts.push(self.matrix(&name("attn_k"), kv, hidden)?);
            if value != KeyNormed {
                parts.push(self.matrix(&name("attn_v"), kv, hidden)?);
            }
        }
        Ok(parts)
    }

    fn experts(&self, i: usize, spec: ExpertSpec) -> Result<Experts<B>> {
        let hidden = self.config.hidden;
        let name = |role: &str| format!("blk.{i}.{role}");
        let ExpertSpec { count, feed_forward: width, .. } = spec;
        let merged = name("ffn_gate_up_exps.weight");
        let gate_up = if self.has(&merged) {
            vec![self.stack(&merged, count, 2 * width, hidden)?]
        } else {
            let gate = self.stack(&name("ffn_gate_exps.weight"), count, width, hidden)?;
            vec![gate, self.stack(&name("ffn_up_exps.weight"), count, width, hidden)?]
        };
        let mut router_scale = self.floats(&name("ffn_gate_inp.scale"), hidden)?;
        let factor = 1.0 / (hidden as f32).sqrt();
        router_scale.iter_mut().for_each(|s| *s *= factor);
        let down_scale = name("ffn_down_exps.scale");
        Ok(Experts {
            spec,
            router: self.matrix(&name("ffn_gate_inp.weight"), count, hidden)?,
            router_scale: self.upload(&router_scale)?,
            expert_scale: self.has(&down_scale).then(|| self.vector(&down_scale, count)).transpose()?,
            norm: self.vector(&name("pre_ffw_norm_2.weight"), hidden)?,
            dense_post_norm: self.vector(&name("post_ffw_norm_1.weight"), hidden)?,
            post_norm: self.vector(&name("post_ffw_norm_2.weight"), hidden)?,
            gate_up,
            down: self.stack(&name("ffn_down_exps.weight"), count, hidden, width)?,
        })
    }

    fn per_layer_inputs(&self, dim: usize) -> Result<PerLayerInputs<B>> {
        let width = dim * self.config.layers.len();
        Ok(PerLayerInputs {
            token_embd: self.matrix("per_layer_token_embd.weight", self.config.vocab, width)?,
            model_proj: self.matrix("per_layer_model_proj.weight", width, self.config.hidden)?,
            proj_norm: self.vector("per_layer_proj_norm.weight", dim)?,
            input_scale: self.upload(&[std::f32::consts::FRAC_1_SQRT_2])?,
        })
    }

    fn output_scale(&self, name: &str) -> Result<Option<B::Buffer>> {
        let Some(info) = self.gguf.tensor(name) else { return Ok(None) };
        let len = if info.shape() == [1] { 1 } else { self.config.hidden };
        self.vector(name, len).map(Some)
    }

    fn rope_frequencies(&self) -> Result<Vec<B::Buffer>> {
        let frequencies = |rope: &super::config::RopeSpec| {
            let half = rope.dim / 2;
            let divisors = match rope.divisors {
                true => self.floats("rope_freqs.weight", half)?,
                false => vec![1.0; half],
            };
            let base = f64::from(rope.base);
            let values: Vec<f32> = (0..half)
                .map(|i| {
                    let frequency = base.powf(-2.0 * i as f64 / rope.dim as f64) / f64::from(rope.factor);
                    (frequency / f64::from(divisors[i])) as f32
                })
                .collect();
            self.upload(&values)
        };
        self.config.ropes.iter().map(frequencies).collect()
    }

    /// The tensor of the output matrix.
    fn stored_head(&self) -> Result<&TensorInfo> {
        let name = if self.has("output.weight") { "output.weight" } else { "token_embd.weight" };
        self.find(name, &[self.config.hidden, self.config.vocab])
    }

    fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    fn find(&self, name: &str, shape: &[usize]) -> Result<&TensorInfo> {
        let info = self.gguf.tensor(name).ok_or_else(|| EngineError::MissingTensor(name.into()))?;
        // Trailing dimensions of 1 may be left out.
        let found: Vec<u64> = trimmed(info.shape().iter().copied());
        let expected: Vec<u64> = trimmed(shape.iter().map(|&n| n as u64));
        if found == expected {
            return Ok(info);
        }
        let (found, expected) = (format!("{:?}", info.shape()), format!("{shape:?}"));
        Err(EngineError::TensorShape { name: name.into(), found, expected })
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<B::Matrix> {
        self.stacked(self.find(name, &[cols, rows])?, 1, rows, cols)
    }

    fn stack(&self, name: &str, stack: usize, rows: usize, cols: usize) -> Result<B::Matrix> {
        self.stacked(self.find(name, &[cols, rows, stack])?, stack, rows, cols)
    }

    fn stacked(&self, info: &TensorInfo, stack: usize, rows: usize, cols: usize) -> Result<B::Matrix> {
        let bytes = self.gguf.data(info)?;
        let (name, ty) = (info.name().to_owned(), info.ty()?);
        Ok(self.backend.matrix(MatrixData { name, ty, rows, cols, stack, bytes })?)
    }

    fn vector(&self, name: &str, len: usize) -> Result<B::Buffer> {
        self.upload(&self.floats(name, len)?)
    }

    fn floats(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let info = self.find(name, &[len])?;
        let mut values = vec![0.0; len];
        block::dequantize(info.ty()?, &self.gguf.data(info)?, &mut values)
            .map_err(|e| EngineError::tensor(name, e.to_string()))?;
        Ok(values)
    }

    fn upload(&self, values: &[f32]) -> Result<B::Buffer> {
        let mut buffer = self.backend.buffer(values.len())?;
        self.backend.upload(values, &mut buffer, 0)?;
        Ok(buffer)
    }
}

fn trimmed(shape: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut shape: Vec<u64> = shape.collect();
    while shape.len() > 1 && shape.last() == Some(&1) {
        shape.pop();
    }
    shape
}
