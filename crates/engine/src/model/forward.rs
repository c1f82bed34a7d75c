//! The forward pass: the one place where the layers are walked.
//!
//! The formulas are those of the Gemma 3 and Gemma 4 text models in Hugging Face transformers. Per layer: attention on the normalised stream, added after
//! its post norm; a dense feed-forward branch, with a mixture of experts beside it where the layer has one, added
//! after its post norm; the layer's slice of the per-layer embeddings where the model has them; the layer scale.

use lapidary_backend::{
    Attention, Backend, Best, Columns, Dims, ExpertInput, HeadNormRope, KeyValueNorm, Norm,
};

use super::Model;
use super::config::{Config, LayerSpec};
use super::head::candidates;
use super::weights::{Experts, FeedForward, Layer, PerLayer, PerLayerInputs};
use super::workspace::{Buffers, ExpertBuffers, PerLayerBuffers, Workspace};
use crate::batch::{Batch, Input, Want};
use crate::error::{EngineError, Result};
use crate::kv::KvCache;
use crate::probe::{Point, Probe};

/// What the rows of a batch asked for, in the order of the batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// Logits of the rows that wanted them, `[n, vocab]`; empty when only the best ones were computed.
    pub logits: Vec<f32>,
    /// Final hidden states of the rows that wanted those, `[n, hidden]`.
    pub hidden: Vec<f32>,
    /// The best logits of the rows that wanted no more, when only those were computed.
    best: Vec<Best>,
    vocab: usize,
}

/// Logits of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Logits<'a> {
    /// Of every token.
    All(&'a [f32]),
    /// Of the tokens `ids`, which ascend and hold all of the largest that were asked for.
    Best {
        /// The tokens.
        ids: &'a [u32],
        /// Their logits.
        values: &'a [f32],
    },
}

impl Output {
    /// All logits of the `index`-th row that wanted some.
    ///
    /// # Panics
    /// When fewer rows did, or that row wanted the best ones only.
    pub fn logits(&self, index: usize) -> &[f32] {
        &self.logits[index * self.vocab..][..self.vocab]
    }

    /// The logits of the `index`-th row that wanted some: all of them, or the best ones.
    ///
    /// # Panics
    /// When fewer rows did.
    pub fn scores(&self, index: usize) -> Logits<'_> {
        match self.best.get(index) {
            Some(best) => Logits::Best { ids: &best.ids, values: &best.values },
            None => Logits::All(self.logits(index)),
        }
    }
}

impl<B: Backend> Model<B> {
    /// Runs the rows of `batch` through the model and makes them part of their sequences in `cache`. Of a draft (rows
    /// that name their parent) nothing is kept until [`KvCache::accept`] names the path.
    ///
    /// On an error the sequences keep their lengths.
    ///
    /// # Errors
    /// When a token id is outside the vocabulary, the context is full, or the device fails.
    pub fn forward(
        &self,
        batch: &Batch,
        cache: &mut KvCache<B>,
        workspace: &mut Workspace<B>,
        probe: &mut impl Probe,
    ) -> Result<Output> {
        if batch.rows.is_empty() {
            return Ok(Output { vocab: self.config.vocab, ..Output::default() });
        }
        self.check(batch)?;
        let prepared = cache.prepare(&batch.rows)?;
        let wanted: Vec<u32> = (0..batch.rows.len())
            .filter(|&r| batch.rows[r].want != Want::Nothing)
            .map(|r| r as u32)
            .collect();
        let backend = &*self.backend;
        workspace.reserve(backend, &self.config, batch.rows.len(), wanted.len())?;
        backend.upload_rows(&prepared.batch, &mut workspace.rows)?;
        let buffers = workspace.buffers.as_mut().expect("reserve makes the buffers");
        let mut pass = Pass {
            model: self,
            backend,
            config: &self.config,
            rows: &workspace.rows,
            n_rows: batch.rows.len(),
            probe,
        };
        pass.embed(batch, buffers)?;
        for (i, (layer, spec)) in self.weights.layers.iter().zip(&self.config.layers).enumerate() {
            pass.layer(i, layer, spec, cache, buffers)?;
        }
        let output = pass.head(batch, &wanted, buffers)?;
        cache.commit(&prepared.chains);
        Ok(output)
    }

    fn check(&self, batch: &Batch) -> Result<()> {
        let vocab = self.config.vocab;
        for row in &batch.rows {
            if let Input::Token(id) = row.input
                && id as usize >= vocab
            {
                return Err(EngineError::TokenId { id, vocab });
            }
        }
        Ok(())
    }
}

/// One forward pass in flight.
struct Pass<'a, B: Backend, P> {
    model: &'a Model<B>,
    backend: &'a B,
    config: &'a Config,
    rows: &'a B::Rows,
    n_rows: usize,
    probe: &'a mut P,
}

impl<B: Backend, P: Probe> Pass<'_, B, P> {
    fn dims(&self) -> Dims {
        Dims { rows: self.n_rows, cols: self.config.hidden }
    }

    fn norm<'b>(&self, weight: &'b B::Buffer) -> Norm<'b, B::Buffer> {
        Norm { weight: Some(weight), eps: self.config.eps }
    }

    fn tell(&mut self, point: Point, buffer: &B::Buffer, dims: Dims) -> Result<()> {
        if self.probe.wants(point) {
            let mut values = vec![0.0; dims.rows * dims.cols];
            self.backend.download(buffer, 0..values.len(), &mut values)?;
            self.probe.values(point, dims.cols, &values);
        }
        Ok(())
    }

    /// Embeddings, rotations and per-layer inputs.
    fn embed(&mut self, batch: &Batch, buffers: &mut Buffers<B>) -> Result<()> {
        let (backend, hidden) = (self.backend, self.config.hidden);
        let weights = &self.model.weights;
        backend.embed(&weights.token_embd, self.rows, (hidden as f32).sqrt(), &mut buffers.x)?;
        for (r, row) in batch.rows.iter().enumerate() {
            if let Input::Embedding { index } = row.input {
                let embedding = &batch.embeddings[index * hidden..][..hidden];
                backend.upload(embedding, &mut buffers.x, r * hidden)?;
            }
        }
        for (frequencies, table) in weights.rope_frequencies.iter().zip(&mut buffers.rope) {
            backend.rope_table(self.rows, frequencies, table)?;
        }
        if let (Some(weights), Some(per_layer)) = (&weights.per_layer, &mut buffers.per_layer) {
            self.per_layer_inputs(weights, &buffers.x, per_layer)?;
        }
        self.tell(Point::Embed, &buffers.x, self.dims())
    }

    /// `(norm(proj(x) / sqrt(hidden)) + embed(token) * sqrt(dim)) / sqrt(2)`, a slice of `dim` columns a layer.
    fn per_layer_inputs(
        &self,
        weights: &PerLayerInputs<B>,
        x: &B::Buffer,
        buffers: &mut PerLayerBuffers<B>,
    ) -> Result<()> {
        let backend = self.backend;
        let n_layers = self.config.layers.len();
        let dim = self.config.per_layer_dim.expect("a model with per-layer embeddings");
        let stride = n_layers * dim;
        backend.embed(&weights.token_embd, self.rows, (dim as f32).sqrt(), &mut buffers.inputs)?;
        backend.linear(x, self.n_rows, &[&weights.model_proj], &mut buffers.projected, stride)?;
        // Normalising y / sqrt(hidden) with eps is normalising y with eps * hidden.
        let norm =
            Norm { weight: Some(&weights.proj_norm), eps: self.config.eps * self.config.hidden as f32 };
        let slices = Dims { rows: self.n_rows * n_layers, cols: dim };
        let scale = &weights.input_scale;
        backend.add_norm(&mut buffers.inputs, &buffers.projected, norm, Some(scale), slices)?;
        Ok(())
    }

    fn layer(
        &mut self,
        i: usize,
        layer: &Layer<B>,
        spec: &LayerSpec,
        cache: &mut KvCache<B>,
        buffers: &mut Buffers<B>,
    ) -> Result<()> {
        self.attention(i, layer, spec, cache, buffers)?;
        self.feed_forward(&layer.dense, spec, buffers)?;
        if let (Some(weights), Some(experts)) = (&layer.experts, &mut buffers.experts) {
            self.experts(i, weights, &buffers.x, &mut buffers.branch, experts)?;
        }
        let (dims, post_norm) = (self.dims(), self.norm(&layer.post_ffw_norm));
        // The layer scale comes last, after the per-layer embeddings where there are any.
        let (scale_here, scale_later) = match layer.per_layer {
            None => (layer.output_scale.as_ref(), None),
            Some(_) => (None, layer.output_scale.as_ref()),
        };
        self.backend.add_norm(&mut buffers.x, &buffers.branch, post_norm, scale_here, dims)?;
        if let Some(weights) = &layer.per_layer {
            self.per_layer(i, weights, scale_later, buffers)?;
        }
        self.tell(Point::LayerOut(i), &buffers.x, dims)
    }

    /// `x += norm(Wo attention(norm(x)))`.
    fn attention(
        &mut self,
        i: usize,
        layer: &Layer<B>,
        spec: &LayerSpec,
        cache: &mut KvCache<B>,
        buffers: &mut Buffers<B>,
    ) -> Result<()> {
        let (backend, dims, layout) = (self.backend, self.dims(), spec.heads);
        let n_rows = self.n_rows;
        backend.rms_norm(&buffers.x, self.norm(&layer.attn_norm), dims, &mut buffers.normed)?;
        let qkv: Vec<&B::Matrix> = layer.qkv.iter().collect();
        backend.linear(&buffers.normed, n_rows, &qkv, &mut buffers.qkv, layout.stride())?;
        let kv = layer.k_norm.as_ref().zip(spec.value).map(|(k_norm, value)| KeyValueNorm { k_norm, value });
        let owns_cache = kv.is_some();
        let rope = &buffers.rope[spec.rope];
        let heads = HeadNormRope { layout, q_norm: &layer.q_norm, kv, rope, eps: self.config.eps };
        backend.head_norm_rope(&mut buffers.qkv, n_rows, &heads)?;
        let slot = spec.cache;
        if owns_cache {
            let pool = cache.pool_mut(slot.group);
            backend
                .kv_store(&buffers.qkv, layout, self.rows, slot.group, pool, slot.layer)
                .map_err(|e| EngineError::in_layer(e, i))?;
        }
        let attention = Attention {
            layout,
            scale: spec.attention_scale,
            window: spec.window,
            group: slot.group,
            layer: slot.layer,
        };
        let pool = cache.pool(slot.group);
        backend.attention(&buffers.qkv, &attention, self.rows, pool, &mut buffers.attention)?;
        let head_dims = Dims { rows: n_rows, cols: layout.heads * layout.head_dim };
        self.tell(Point::AttentionHeads(i), &buffers.attention, head_dims)?;
        backend.linear(&buffers.attention, n_rows, &[&layer.attn_output], &mut buffers.branch, dims.cols)?;
        self.tell(Point::AttentionOut(i), &buffers.branch, dims)?;
        let post_norm = self.norm(&layer.post_attention_norm);
        backend.add_norm(&mut buffers.x, &buffers.branch, post_norm, None, dims)?;
        Ok(())
    }

    /// `branch = Wdown(gelu(Wgate n) * Wup n)` with `n = norm(x)`.
    fn feed_forward(
        &mut self,
        weights: &FeedForward<B>,
        spec: &LayerSpec,
        buffers: &mut Buffers<B>,
    ) -> Result<()> {
        let (backend, dims, n_rows, width) = (self.backend, self.dims(), self.n_rows, spec.feed_forward);
        backend.rms_norm(&buffers.x, self.norm(&weights.norm), dims, &mut buffers.normed)?;
        let [gate, up] = &weights.gate_up;
        backend.linear(&buffers.normed, n_rows, &[gate, up], &mut buffers.gate_up, 2 * width)?;
        self.gate(&buffers.gate_up, n_rows, width, &mut buffers.activated)?;
        backend.linear(&buffers.activated, n_rows, &[&weights.down], &mut buffers.branch, dims.cols)?;
        Ok(())
    }

    /// `out = gelu(gate) * up` of rows that hold the gate's columns and then the up's.
    fn gate(&self, gate_up: &B::Buffer, rows: usize, width: usize, out: &mut B::Buffer) -> Result<()> {
        let columns = |offset| Columns { buffer: gate_up, offset, stride: 2 * width };
        let dims = Dims { rows, cols: width };
        Ok(self.backend.gated_activation(columns(0), columns(width), dims, out)?)
    }

    /// `branch = norm(branch) + norm(sum of weighted expert outputs)`.
    fn experts(
        &mut self,
        i: usize,
        weights: &Experts<B>,
        x: &B::Buffer,
        branch: &mut B::Buffer,
        buffers: &mut ExpertBuffers<B>,
    ) -> Result<()> {
        let (backend, dims, n_rows) = (self.backend, self.dims(), self.n_rows);
        let spec = weights.spec;
        let choices = n_rows * spec.top_k;
        backend.rms_norm(x, self.norm(&weights.router_scale), dims, &mut buffers.input)?;
        backend.linear(&buffers.input, n_rows, &[&weights.router], &mut buffers.scores, spec.count)?;
        let scores = Dims { rows: n_rows, cols: spec.count };
        let expert_scale = weights.expert_scale.as_ref();
        backend.route(&buffers.scores, scores, spec.top_k, expert_scale, &mut buffers.routing)?;
        if self.probe.wants(Point::Router(i)) {
            let choices = backend.choices(&buffers.routing)?;
            self.probe.choices(Point::Router(i), spec.top_k, &choices);
        }

        backend.rms_norm(x, self.norm(&weights.norm), dims, &mut buffers.input)?;
        let gate_up: Vec<&B::Matrix> = weights.gate_up.iter().collect();
        let (routing, width) = (&buffers.routing, spec.feed_forward);
        let (input, out) = (&buffers.input, &mut buffers.gate_up);
        backend.expert_linear(input, ExpertInput::PerRow, routing, &gate_up, out, 2 * width)?;
        self.gate(&buffers.gate_up, choices, width, &mut buffers.activated)?;
        let (input, out) = (&buffers.activated, &mut buffers.outputs);
        backend.expert_linear(input, ExpertInput::PerChoice, routing, &[&weights.down], out, dims.cols)?;
        backend.combine(&buffers.outputs, routing, dims.cols, &mut buffers.combined)?;

        backend.rms_norm(branch, self.norm(&weights.dense_post_norm), dims, &mut buffers.dense)?;
        let post_norm = self.norm(&weights.post_norm);
        backend.add_norm(&mut buffers.dense, &buffers.combined, post_norm, None, dims)?;
        std::mem::swap(branch, &mut buffers.dense);
        Ok(())
    }

    /// `x = (x + norm(Wproj(gelu(Wgate x) * slice))) * scale`.
    fn per_layer(
        &mut self,
        i: usize,
        weights: &PerLayer<B>,
        scale: Option<&B::Buffer>,
        buffers: &mut Buffers<B>,
    ) -> Result<()> {
        let (backend, dims, n_rows) = (self.backend, self.dims(), self.n_rows);
        let dim = self.config.per_layer_dim.expect("a model with per-layer embeddings");
        let per_layer = buffers.per_layer.as_mut().expect("a model with per-layer embeddings");
        backend.linear(&buffers.x, n_rows, &[&weights.gate], &mut per_layer.projected, dim)?;
        let gate = Columns { buffer: &per_layer.projected, offset: 0, stride: dim };
        let stride = self.config.layers.len() * dim;
        let slice = Columns { buffer: &per_layer.inputs, offset: i * dim, stride };
        let shape = Dims { rows: n_rows, cols: dim };
        backend.gated_activation(gate, slice, shape, &mut per_layer.activated)?;
        backend.linear(&per_layer.activated, n_rows, &[&weights.proj], &mut buffers.branch, dims.cols)?;
        let post_norm = self.norm(&weights.post_norm);
        backend.add_norm(&mut buffers.x, &buffers.branch, post_norm, scale, dims)?;
        Ok(())
    }

    /// Final norm and logits of the rows that want them.
    fn head(&mut self, batch: &Batch, wanted: &[u32], buffers: &mut Buffers<B>) -> Result<Output> {
        let (backend, hidden, vocab) = (self.backend, self.config.hidden, self.config.vocab);
        let mut output = Output { vocab, ..Output::default() };
        if wanted.is_empty() {
            return Ok(output);
        }
        let weights = &self.model.weights;
        let dims = Dims { rows: wanted.len(), cols: hidden };
        backend.gather(&buffers.x, wanted, hidden, &mut buffers.last)?;
        backend.rms_norm(&buffers.last, self.norm(&weights.output_norm), dims, &mut buffers.final_norm)?;
        self.tell(Point::FinalNorm, &buffers.final_norm, dims)?;
        let wants = || wanted.iter().map(|&row| batch.rows[row as usize].want);
        if let Some(screening) = &weights.screening {
            let ks: Vec<usize> =
                wants().filter_map(|w| if let Want::Best(k) = w { Some(k) } else { None }).collect();
            // All rows or none: the whole matrix is read once for any number of rows.
            if ks.len() == wanted.len() {
                let (x, matrix) = ((&buffers.final_norm, &*ks), weights.stored_head());
                if let Some(best) = screening.best(backend, x, matrix, self.config.softcap)? {
                    output.best = best;
                    return Ok(output);
                }
            }
        }
        if wants().any(Want::wants_logits) {
            let stored = weights.stored_head();
            let head = weights.head.as_ref().map_or(stored, |head| &head.matrix);
            backend.linear(&buffers.final_norm, wanted.len(), &[head], &mut buffers.logits, vocab)?;
            if let Some(always) = weights.head.as_ref().and_then(|head| head.rerank.as_ref()) {
                self.rerank(always, stored, wanted.len(), buffers)?;
            }
            if let Some(cap) = self.config.softcap {
                backend.softcap(&mut buffers.logits, cap, wanted.len() * vocab)?;
            }
        }
        self.read_back(batch, wanted, buffers, &mut output)?;
        Ok(output)
    }

    /// Replaces the logits that could win by exact ones, from the stored rows of the head.
    fn rerank(&self, always: &[u32], stored: &B::Matrix, n: usize, buffers: &mut Buffers<B>) -> Result<()> {
        let (backend, vocab) = (self.backend, self.config.vocab);
        let mut coarse = vec![0.0; vocab];
        for row in 0..n {
            backend.download(&buffers.logits, row * vocab..(row + 1) * vocab, &mut coarse)?;
            let ids = candidates(&coarse, always);
            let exact = backend.row_dots(&buffers.final_norm, row, stored, &ids)?;
            for (id, logit) in ids.into_iter().zip(exact) {
                backend.upload(&[logit], &mut buffers.logits, row * vocab + id as usize)?;
            }
        }
        Ok(())
    }

    fn read_back(
        &self,
        batch: &Batch,
        wanted: &[u32],
        buffers: &Buffers<B>,
        output: &mut Output,
    ) -> Result<()> {
        let (backend, hidden, vocab) = (self.backend, self.config.hidden, self.config.vocab);
        for (i, &row) in wanted.iter().enumerate() {
            let (buffer, cols, target) = match batch.rows[row as usize].want {
                want if want.wants_logits() => (&buffers.logits, vocab, &mut output.logits),
                _ => (&buffers.final_norm, hidden, &mut output.hidden),
            };
            let start = target.len();
            target.resize(start + cols, 0.0);
            backend.download(buffer, i * cols..(i + 1) * cols, &mut target[start..])?;
        }
        Ok(())
    }
}
