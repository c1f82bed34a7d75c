//! Weight matrices as the CPU backend holds them: the file's bytes, untouched.

use std::sync::{Arc, OnceLock};

use lapidary_backend::{MatrixData, Result};

use crate::linear::WeightMatrix;
use crate::screen::Screen;

/// A weight matrix, or a stack of them, read from its stored bytes.
#[derive(Clone, Debug)]
pub struct CpuMatrix {
    data: MatrixData,
    row_bytes: usize,
    /// The coarse copy, made when it is asked for; `None` inside when there can be none.
    screen: Arc<OnceLock<Option<Screen>>>,
}

impl CpuMatrix {
    /// Checks the sizes; nothing is copied.
    pub(crate) fn new(data: MatrixData) -> Result<Self> {
        data.check()?;
        let row_bytes = data.bytes.len() / (data.stack * data.rows).max(1);
        Ok(Self { data, row_bytes, screen: Arc::default() })
    }

    /// Shape, type and bytes.
    pub fn data(&self) -> &MatrixData {
        &self.data
    }

    /// The coarse copy, if it was made.
    pub(crate) fn screen(&self) -> Option<&Screen> {
        self.screen.get()?.as_ref()
    }

    /// The coarse copy; `make` is called the first time only.
    pub(crate) fn screen_or(&self, make: impl FnOnce() -> Option<Screen>) -> Option<&Screen> {
        self.screen.get_or_init(make).as_ref()
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
