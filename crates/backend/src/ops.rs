//! Parameters of the operations: shapes and constants under names.

use lapidary_gguf::{GgmlType, SharedBytes};

/// `cols` consecutive columns, starting at `offset`, of rows that are `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a, T> {
    /// The buffer that holds the rows.
    pub buffer: &'a T,
    /// First column.
    pub offset: usize,
    /// Elements from one row to the next.
    pub stride: usize,
}

/// A row-major matrix shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Number of rows.
    pub rows: usize,
    /// Elements a row.
    pub cols: usize,
}

/// RMS normalisation: `x / sqrt(mean(x^2) + eps) * weight`.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a, T> {
    /// One factor a column; absent means 1.
    pub weight: Option<&'a T>,
    /// Added to the mean square.
    pub eps: f32,
}

/// Rows of a product that were computed because they could be among the largest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Best {
    /// Their numbers, ascending.
    pub ids: Vec<u32>,
    /// Their results, one a row.
    pub values: Vec<f32>,
}

/// A weight matrix, or several of equal shape stacked (the experts of a layer), as stored in the file.
#[derive(Clone, Debug)]
pub struct MatrixData {
    /// Tensor name, for messages.
    pub name: String,
    /// Element type.
    pub ty: GgmlType,
    /// Output rows of one matrix.
    pub rows: usize,
    /// Input columns.
    pub cols: usize,
    /// Stacked matrices; 1 for an ordinary one.
    pub stack: usize,
    /// `stack * rows` rows of `cols` elements.
    pub bytes: SharedBytes,
}

impl MatrixData {
    /// Checks that the bytes are exactly those of the shape.
    ///
    /// # Errors
    /// [`MatrixSize`](crate::BackendError::MatrixSize) when they are not.
    pub fn check(&self) -> crate::Result<()> {
        let rows = self.stack.saturating_mul(self.rows);
        let expected = self.ty.row_bytes(self.cols).and_then(|b| b.checked_mul(rows)).unwrap_or(usize::MAX);
        if expected == self.bytes.len() {
            return Ok(());
        }
        let (name, ty, cols, found) = (self.name.clone(), self.ty, self.cols, self.bytes.len());
        Err(crate::BackendError::MatrixSize { name, ty, rows, cols, expected, found })
    }
}

/// Layout of the query, key and value columns of one row: `heads` query heads, then `kv_heads` key heads, then
/// `kv_heads` value heads, each of `head_dim` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLayout {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements a head; even.
    pub head_dim: usize,
}

impl HeadLayout {
    /// Column of the first key.
    pub const fn k_offset(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Column of the first value.
    pub const fn v_offset(&self) -> usize {
        (self.heads + self.kv_heads) * self.head_dim
    }

    /// Elements from one row to the next.
    pub const fn stride(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// What [`Backend::head_norm_rope`](crate::Backend::head_norm_rope) does to the heads of each row.
#[derive(Debug)]
pub struct HeadNormRope<'a, T> {
    /// Where the heads lie.
    pub layout: HeadLayout,
    /// Weight of the query norm, `[head_dim]`.
    pub q_norm: &'a T,
    /// Where keys and values come from; absent for layers that use another layer's cache.
    pub kv: Option<KeyValueNorm<'a, T>>,
    /// Cosines and sines of each row, see [`Backend::rope_table`](crate::Backend::rope_table).
    pub rope: &'a T,
    /// Norm epsilon.
    pub eps: f32,
}

/// Treatment of the key and value heads.
#[derive(Debug)]
pub struct KeyValueNorm<'a, T> {
    /// Weight of the key norm, `[head_dim]`.
    pub k_norm: &'a T,
    /// Where the values come from and whether they are normalised.
    pub value: ValueSource,
}

/// Where a layer's values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// The value columns, as they are (Gemma 3).
    Projected,
    /// The value columns, RMS-normalised a head without weight (Gemma 4).
    ProjectedNormed,
    /// The key columns before norm and rotation, RMS-normalised a head without weight (Gemma 4, K = V layers).
    KeyNormed,
}

/// Constants of an attention call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Where the queries lie in a row.
    pub layout: HeadLayout,
    /// Factor on the scores.
    pub scale: f32,
    /// Sliding window: a row at `t` sees positions `p` with `t - p < window`. Absent: all positions.
    pub window: Option<usize>,
    /// Layer group of the batch's rows.
    pub group: usize,
    /// The layer's place in the pool.
    pub layer: usize,
}

/// Which rows of its input an expert product reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertInput {
    /// Input row `r` for each of the experts of row `r`.
    PerRow,
    /// Input row `r * top_k + j` for the `j`-th expert of row `r`.
    PerChoice,
}

/// Expert choices of one batch, read back from a backend. Entry `r * top_k + j` is the `j`-th best of row `r`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choices {
    /// Expert ids.
    pub experts: Vec<u32>,
    /// Their weights: renormalised probability times the expert's own scale.
    pub weights: Vec<f32>,
}
