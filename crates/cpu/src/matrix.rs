//! Weight matrices as the CPU backend holds them: the file's bytes, untouched.

use lapidary_backend::{MatrixData, Result};

use crate::linear::WeightMatrix;

/// A weight matrix, or a stack of them, read from its stored bytes.
#[derive(Clone, Debug)]
pub struct CpuMatrix {
    data: MatrixData,
    row_bytes: usize,
}

impl CpuMatrix {
    /// Checks the sizes; nothing is copied.
    pub(crate) fn new(data: MatrixData) -> Result<Self> {
        data.check()?;
        let row_bytes = data.bytes.len() / (data.stack * data.rows).max(1);
        Ok(Self { data, row_bytes })
    }

    /// Shape, type and bytes.
    pub fn data(&self) -> &MatrixData {
        &self.data
    }

    /// The bytes of row `row`, counted over the whole stack.
    pub(crate) fn row_bytes(&self, row: usize) -> &[u8] {
        &self.data.bytes[row * self.row_bytes..][..self.row_bytes]
    }

    /// The `index`-th matrix of the stack.
    pub(crate) fn weights(&self, index: usize) -> WeightMatrix<'_> {
        let MatrixData { ty, rows, cols, .. } = self.data;
        let len = rows * self.row_bytes;
        let bytes = &self.data.bytes[index * len..][..len];
        WeightMatrix::new(ty, rows, cols, bytes).expect("the sizes were checked when the matrix was made")
    }
}
