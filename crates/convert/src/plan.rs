//! The tensors of an output file, before anything is written.

use lapidary_gguf::{GgmlType, SharedBytes};

use crate::error::{ConvertError, Result};

/// Gives a tensor's elements as f32.
pub trait Elements: Send + Sync {
    /// Reads the elements from `first` on. `scratch` is reused between calls.
    fn read(&self, first: u64, out: &mut [f32], scratch: &mut Vec<u8>) -> Result<()>;
}

/// Gives a tensor's data in the output's type.
pub trait Blocks: Send + Sync {
    /// Appends the bytes of `n` rows from `first` on.
    fn rows(&self, first: u64, n: u64, out: &mut Vec<u8>);
}

/// Where a tensor's data comes from.
pub enum Source<'a> {
    /// Elements to encode.
    Elements(Box<dyn Elements + 'a>),
    /// Rows made as they are written, already in the output's type.
    Blocks(Box<dyn Blocks + 'a>),
    /// Bytes that are already in the output's type.
    Bytes(SharedBytes),
}

/// A tensor of the output.
pub struct PlannedTensor<'a> {
    /// GGUF name.
    pub name: String,
    /// Dimensions, fastest first.
    pub shape: Vec<u64>,
    /// Type in the output.
    pub ty: GgmlType,
    /// Its data.
    pub source: Source<'a>,
    /// Importance of each column, for each matrix of a stack.
    pub importance: Option<&'a [f32]>,
}

impl PlannedTensor<'_> {
    /// Elements of a row.
    pub fn row_len(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Number of rows of all matrices.
    pub fn rows(&self) -> u64 {
        self.shape.iter().skip(1).product()
    }

    /// Rows of one matrix of a stack.
    pub fn rows_per_matrix(&self) -> u64 {
        self.shape.get(1).copied().unwrap_or(1)
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes of a row in the output.
    pub fn row_bytes(&self) -> Result<u64> {
        let bytes = usize::try_from(self.row_len()).ok().and_then(|n| self.ty.row_bytes(n));
        bytes.map(|n| n as u64).ok_or_else(|| ConvertError::Tensor {
            name: self.name.clone(),
            problem: format!("rows of {} elements cannot be stored as {}", self.row_len(), self.ty),
        })
    }

    /// Bytes of its data in the output.
    pub fn bytes(&self) -> Result<u64> {
        Ok(self.row_bytes()? * self.rows())
    }
}
