//! Observers of the forward pass.
//!
//! The pass tells a [`Probe`] about named points. Hidden-state capture, tensor dumps and the like are probes; with
//! [`NoProbe`] the calls compile to nothing.

use lapidary_backend::Choices;

/// A named value of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    /// The scaled embeddings, `[rows, hidden]`.
    Embed,
    /// What the heads of layer `.0` attended to, before the output projection, `[rows, heads * head_dim]`.
    AttentionHeads(usize),
    /// Output of layer `.0`'s attention before its post norm, `[rows, hidden]`.
    AttentionOut(usize),
    /// Output of layer `.0`, `[rows, hidden]`.
    LayerOut(usize),
    /// Expert choices of layer `.0`; told by [`Probe::choices`].
    Router(usize),
    /// After the final norm, the rows that want something, `[wanted rows, hidden]`.
    FinalNorm,
}

/// Observes the forward pass.
pub trait Probe {
    /// Whether the probe wants to see `point`; values are read from the device only then.
    fn wants(&self, point: Point) -> bool;

    /// The value of `point`: rows of `cols` elements, in the order of the batch.
    fn values(&mut self, point: Point, cols: usize, values: &[f32]);

    /// Expert choices of `point`, `top_k` a row.
    fn choices(&mut self, point: Point, top_k: usize, choices: &Choices);
}

/// Sees nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProbe;

impl Probe for NoProbe {
    #[inline]
    fn wants(&self, _: Point) -> bool {
        false
    }

    fn values(&mut self, _: Point, _: usize, _: &[f32]) {}

    fn choices(&mut self, _: Point, _: usize, _: &Choices) {}
}
