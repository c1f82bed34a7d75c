//! The [`Backend`] trait.

use std::ops::Range;

use crate::{
    Attention, Best, Choices, Columns, Dims, ExpertInput, HeadLayout, HeadNormRope, KvPoolSpec, MatrixData,
    Norm, Result, RowBatch,
};

/// A device that can run the model.
///
/// Every operation's result for one row depends on that row's inputs alone, never on which other rows are in
/// the batch. Shapes are the caller's responsibility: a backend may panic when a buffer is shorter than a shape
/// says. Sizes and ids that come from outside are checked before they get here.
pub trait Backend: Sized + Send + Sync + 'static {
    /// Row-major `f32` memory of the device.
    type Buffer: Send + Sync;
    /// A weight matrix ready for products.
    type Matrix: Send + Sync;
    /// The uploaded rows of a batch.
    type Rows: Send + Sync + Default;
    /// Key/value blocks of one layer group.
    type KvPool: Send + Sync;
    /// Expert choices of the rows in flight.
    type Routing: Send + Sync + Default;

    /// The device in words, for people.
    fn name(&self) -> String;

    /// Waits until everything enqueued so far is done.
    ///
    /// # Errors
    /// When the device fails.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// A zeroed buffer of `len` elements.
    fn buffer(&self, len: usize) -> Result<Self::Buffer>;

    /// Writes `data` to `buffer[offset..]`.
    fn upload(&self, data: &[f32], buffer: &mut Self::Buffer, offset: usize) -> Result<()>;

    /// Waits for what was enqueued and reads `buffer[range]` into `out`.
    fn download(&self, buffer: &Self::Buffer, range: Range<usize>, out: &mut [f32]) -> Result<()>;

    /// Prepares a weight matrix.
    fn matrix(&self, data: MatrixData) -> Result<Self::Matrix>;

    /// Uploads the description of a batch.
    fn upload_rows(&self, batch: &RowBatch, rows: &mut Self::Rows) -> Result<()>;

    /// An empty pool of key/value blocks.
    fn kv_pool(&self, spec: KvPoolSpec) -> Result<Self::KvPool>;

    /// Grows the pool to at least `n_blocks` blocks; what is stored stays.
    fn kv_reserve(&self, pool: &mut Self::KvPool, n_blocks: usize) -> Result<()>;

    /// Gives the memory of blocks back. They stay part of the pool; what they held is lost, and they take memory again
    /// when something is stored in, copied to, or imported into them.
    fn kv_free(&self, pool: &mut Self::KvPool, blocks: &[u32]) -> Result<()>;

    /// Copies cells `(from, to)` in all layers of the pool, in order.
    fn kv_copy(&self, pool: &mut Self::KvPool, cells: &[(u32, u32)]) -> Result<()>;

    /// Appends the contents of a block to `out`, in the device's own layout: bytes that
    /// [`kv_import`](Backend::kv_import) takes.
    fn kv_export(&self, pool: &Self::KvPool, block: u32, out: &mut Vec<u8>) -> Result<()>;

    /// Fills a block with what [`kv_export`](Backend::kv_export) gave for a block of a pool of the same shape.
    ///
    /// # Errors
    /// [`BlockSize`](crate::BackendError::BlockSize) when the bytes are not as many as a block's.
    fn kv_import(&self, pool: &mut Self::KvPool, block: u32, bytes: &[u8]) -> Result<()>;

    /// Names everything that the bytes of [`kv_export`](Backend::kv_export) depend on beside the pool's shape and what was
    /// stored: the layout, and how the numbers come about. Bytes kept under another name are not to be imported.
    fn kv_layout(&self) -> String;

    /// `out[r, :] = scale * table[token of row r, :]`.
    fn embed(
        &self,
        table: &Self::Matrix,
        rows: &Self::Rows,
        scale: f32,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// `out[i, :] = x[rows[i], :]` with rows of `cols` elements.
    fn gather(&self, x: &Self::Buffer, rows: &[u32], cols: usize, out: &mut Self::Buffer) -> Result<()>;

    /// `out[r, :] = norm(x[r, :])`.
    fn rms_norm(
        &self,
        x: &Self::Buffer,
        norm: Norm<Self::Buffer>,
        dims: Dims,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// Products with several matrices that share their input:
    /// `out[r, offset_m + n] = sum_k m[n, k] * x[r, k]`, where `offset_m` counts the rows of the matrices before
    /// `m`. Rows of `out` are `out_stride` elements apart; columns beyond the products are left alone.
    fn linear(
        &self,
        x: &Self::Buffer,
        n_rows: usize,
        matrices: &[&Self::Matrix],
        out: &mut Self::Buffer,
        out_stride: usize,
    ) -> Result<()>;

    /// `dot(x[row, :], matrix[id, :])` for each of `ids`, with the stored values and no rounding of `x`. Few ids:
    /// this is the exact second look at a handful of logits.
    fn row_dots(&self, x: &Self::Buffer, row: usize, matrix: &Self::Matrix, ids: &[u32]) -> Result<Vec<f32>>;

    /// Bytes of a coarse copy of `matrix` with which [`best`](Backend::best) reads less; `None` when the backend has no
    /// such thing for it.
    fn screen_bytes(&self, _matrix: &Self::Matrix) -> Option<usize> {
        None
    }

    /// Makes that copy, once. `importance` says for each column how large the activations are that it will meet, in
    /// any unit; results do not depend on it. False when there can be none.
    fn screen(&self, _matrix: &Self::Matrix, _importance: &[f32]) -> Result<bool> {
        Ok(false)
    }

    /// The rows of `matrix` whose product with row `row` of `x` could be among the `k` largest, the lower id first among
    /// equals: all of those, and perhaps others, with the bits that [`linear`](Backend::linear) and, where `softcap` is
    /// given, [`softcap`](Backend::softcap) give them. `None` when the whole product is to be taken instead: there is no
    /// coarse copy, or it does not tell the rows apart.
    fn best(
        &self,
        _x: &Self::Buffer,
        _row: usize,
        _matrix: &Self::Matrix,
        _k: usize,
        _softcap: Option<f32>,
    ) -> Result<Option<Best>> {
        Ok(None)
    }

    /// Cosines and sines of a rotation: with `half = frequencies.len()`,
    /// `out[r, i] = cos(position_r * frequencies[i])` for `i < half` and `out[r, half + i]` the sine.
    fn rope_table(&self, rows: &Self::Rows, frequencies: &Self::Buffer, out: &mut Self::Buffer)
    -> Result<()>;

    /// Per-head norm and rotation of the query, key and value columns, in place. Queries and keys:
    /// `y = rms_norm(head) * weight`, then elements `i` and `i + head_dim/2` are rotated by the row's angle `i`
    /// (NEOX order). Values as [`ValueSource`](crate::ValueSource) says.
    fn head_norm_rope(
        &self,
        qkv: &mut Self::Buffer,
        n_rows: usize,
        heads: &HeadNormRope<Self::Buffer>,
    ) -> Result<()>;

    /// Stores each row's keys and values in layer `layer` of the pool, at the cells of `group`. The TurboQuant
    /// formats refuse what is not finite ([`NotFinite`](crate::BackendError::NotFinite)); a backend that runs
    /// later than it is asked may say so at the next [`download`](Backend::download).
    fn kv_store(
        &self,
        qkv: &Self::Buffer,
        layout: HeadLayout,
        rows: &Self::Rows,
        group: usize,
        pool: &mut Self::KvPool,
        layer: usize,
    ) -> Result<()>;

    /// Grouped-query attention of each row over the cached positions it sees; query head `h` reads key/value
    /// head `h * kv_heads / heads`. `out` is `[rows, heads * head_dim]`.
    fn attention(
        &self,
        qkv: &Self::Buffer,
        attention: &Attention,
        rows: &Self::Rows,
        pool: &Self::KvPool,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// `out[r, i] = gelu_tanh(gate[r, i]) * up[r, i]`.
    fn gated_activation(
        &self,
        gate: Columns<Self::Buffer>,
        up: Columns<Self::Buffer>,
        dims: Dims,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// `x[r, :] = (x[r, :] + norm(y[r, :])) * scale`. `scale` holds one value, or one a column; absent means 1.
    fn add_norm(
        &self,
        x: &mut Self::Buffer,
        y: &Self::Buffer,
        norm: Norm<Self::Buffer>,
        scale: Option<&Self::Buffer>,
        dims: Dims,
    ) -> Result<()>;

    /// Expert choice: softmax over the `n_experts` scores of each row, the `top_k` largest (the lower id first
    /// among equals), weights renormalised to sum 1 and multiplied by `expert_scale[id]` where given.
    fn route(
        &self,
        scores: &Self::Buffer,
        dims: Dims,
        top_k: usize,
        expert_scale: Option<&Self::Buffer>,
        routing: &mut Self::Routing,
    ) -> Result<()>;

    /// Reads the choices back.
    fn choices(&self, routing: &Self::Routing) -> Result<Choices>;

    /// Products with the chosen experts' matrices:
    /// `out[r * top_k + j, offset_m + n] = sum_k m[expert_rj][n, k] * x[input row, k]`, columns as in
    /// [`linear`](Backend::linear). Experts that no row chose are not touched.
    fn expert_linear(
        &self,
        x: &Self::Buffer,
        input: ExpertInput,
        routing: &Self::Routing,
        matrices: &[&Self::Matrix],
        out: &mut Self::Buffer,
        out_stride: usize,
    ) -> Result<()>;

    /// `out[r, :] = sum_j weight_rj * y[r * top_k + j, :]`, in the order of `j`.
    fn combine(
        &self,
        y: &Self::Buffer,
        routing: &Self::Routing,
        cols: usize,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// `x = cap * tanh(x / cap)` for the first `len` elements.
    fn softcap(&self, x: &mut Self::Buffer, cap: f32, len: usize) -> Result<()>;
}
