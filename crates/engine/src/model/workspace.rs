//! Buffers that hold the activations of one forward pass, kept between passes.

use lapidary_backend::Backend;

use super::config::{Config, ExpertSpec, LayerSpec};
use crate::error::Result;

/// Activations of up to `capacity` rows. Grows when a larger batch comes.
pub struct Workspace<B: Backend> {
    pub(super) rows: B::Rows,
    pub(super) buffers: Option<Buffers<B>>,
    capacity: usize,
    wanted_capacity: usize,
}

/// One buffer a role; `R` stands for rows.
pub(super) struct Buffers<B: Backend> {
    /// Residual stream `[R, hidden]`.
    pub x: B::Buffer,
    /// Normalised input of a branch `[R, hidden]`.
    pub normed: B::Buffer,
    /// Query, key and value heads `[R, stride of the widest layer]`.
    pub qkv: B::Buffer,
    /// Attention output `[R, heads * head_dim]`.
    pub attention: B::Buffer,
    /// Output of a branch `[R, hidden]`.
    pub branch: B::Buffer,
    /// Gate and up `[R, 2 * width]`.
    pub gate_up: B::Buffer,
    /// Activated product `[R, width]`.
    pub activated: B::Buffer,
    /// Cosines and sines, one buffer a rotation, `[R, dim]`.
    pub rope: Vec<B::Buffer>,
    /// Final states of the rows that want something `[W, hidden]`.
    pub last: B::Buffer,
    /// The same after the final norm.
    pub final_norm: B::Buffer,
    /// Logits of the rows that want them `[W, vocab]`.
    pub logits: B::Buffer,
    /// Mixture of experts.
    pub experts: Option<ExpertBuffers<B>>,
    /// Per-layer embeddings.
    pub per_layer: Option<PerLayerBuffers<B>>,
}

pub(super) struct ExpertBuffers<B: Backend> {
    pub routing: B::Routing,
    /// Router input, then expert input `[R, hidden]`.
    pub input: B::Buffer,
    /// Router scores `[R, count]`.
    pub scores: B::Buffer,
    /// `[R * top_k, 2 * width]`.
    pub gate_up: B::Buffer,
    /// `[R * top_k, width]`.
    pub activated: B::Buffer,
    /// `[R * top_k, hidden]`.
    pub outputs: B::Buffer,
    /// `[R, hidden]`.
    pub combined: B::Buffer,
    /// Normalised output of the dense branch `[R, hidden]`.
    pub dense: B::Buffer,
}

pub(super) struct PerLayerBuffers<B: Backend> {
    /// `[R, layers * dim]`.
    pub inputs: B::Buffer,
    /// `[R, layers * dim]`, then a layer's gate `[R, dim]`.
    pub projected: B::Buffer,
    /// `[R, dim]`.
    pub activated: B::Buffer,
}

impl<B: Backend> Workspace<B> {
    /// An empty workspace; the first pass sizes it.
    pub fn new() -> Self {
        Self { rows: B::Rows::default(), buffers: None, capacity: 0, wanted_capacity: 0 }
    }

    /// Bytes that the activations of `rows` rows take, of which `wanted` want logits; what a backend pads is not counted.
    pub fn bytes(config: &Config, rows: usize, wanted: usize) -> usize {
        let hidden = config.hidden;
        let layer = |l: &LayerSpec| l.heads.stride() + l.heads.heads * l.heads.head_dim + 3 * l.feed_forward;
        let expert = |e: ExpertSpec| 4 * hidden + e.count + e.top_k * (3 * e.feed_forward + hidden);
        let experts = config.layers.iter().filter_map(|l| l.experts).map(expert).max().unwrap_or(0);
        let rotations: usize = config.ropes.iter().map(|r| r.dim).sum();
        let per_layer = config.per_layer_dim.map_or(0, |dim| dim * (2 * config.layers.len() + 1));
        let a_row = 3 * hidden + config.max_over_layers(layer) + rotations + experts + per_layer;
        size_of::<f32>() * (rows * a_row + wanted * (2 * hidden + config.vocab))
    }

    /// Makes room for `rows` rows of which `wanted` want logits or states.
    pub(super) fn reserve(&mut self, backend: &B, config: &Config, rows: usize, wanted: usize) -> Result<()> {
        if self.buffers.is_some() && rows <= self.capacity && wanted <= self.wanted_capacity {
            return Ok(());
        }
        // The old buffers go first, so that both never exist together.
        self.buffers = None;
        let (rows, wanted) = (self.capacity.max(rows), self.wanted_capacity.max(wanted));
        (self.capacity, self.wanted_capacity) = (0, 0);
        self.buffers = Some(Buffers::new(backend, config, rows, wanted)?);
        (self.capacity, self.wanted_capacity) = (rows, wanted);
        Ok(())
    }
}

impl<B: Backend> Default for Workspace<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B: Backend> Buffers<B> {
    fn new(backend: &B, config: &Config, rows: usize, wanted: usize) -> Result<Self> {
        let buffer = |cols: usize, rows: usize| backend.buffer(cols * rows);
        let hidden = config.hidden;
        let width = config.max_over_layers(|l| l.feed_forward);
        let attention = config.max_over_layers(|l| l.heads.heads * l.heads.head_dim);
        Ok(Self {
            x: buffer(hidden, rows)?,
            normed: buffer(hidden, rows)?,
            qkv: buffer(config.max_over_layers(|l| l.heads.stride()), rows)?,
            attention: buffer(attention, rows)?,
            branch: buffer(hidden, rows)?,
            gate_up: buffer(2 * width, rows)?,
            activated: buffer(width, rows)?,
            rope: config.ropes.iter().map(|r| buffer(r.dim, rows)).collect::<Result<_, _>>()?,
            last: buffer(hidden, wanted)?,
            final_norm: buffer(hidden, wanted)?,
            logits: buffer(config.vocab, wanted)?,
            experts: ExpertBuffers::new(backend, config, rows)?,
            per_layer: config
                .per_layer_dim
                .map(|dim| -> Result<_> {
                    let all = dim * config.layers.len();
                    let (inputs, projected) = (buffer(all, rows)?, buffer(all, rows)?);
                    Ok(PerLayerBuffers { inputs, projected, activated: buffer(dim, rows)? })
                })
                .transpose()?,
        })
    }
}

impl<B: Backend> ExpertBuffers<B> {
    fn new(backend: &B, config: &Config, rows: usize) -> Result<Option<Self>> {
        let specs = || config.layers.iter().filter_map(|l| l.experts);
        let Some(count) = specs().map(|e| e.count).max() else { return Ok(None) };
        let choices = rows * specs().map(|e| e.top_k).max().unwrap_or(0);
        let width = specs().map(|e| e.feed_forward).max().unwrap_or(0);
        let buffer = |len: usize| backend.buffer(len);
        let hidden = config.hidden;
        Ok(Some(Self {
            routing: B::Routing::default(),
            input: buffer(rows * hidden)?,
            scores: buffer(rows * count)?,
            gate_up: buffer(choices * 2 * width)?,
            activated: buffer(choices * width)?,
            outputs: buffer(choices * hidden)?,
            combined: buffer(rows * hidden)?,
            dense: buffer(rows * hidden)?,
        }))
    }
}
