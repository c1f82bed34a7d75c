//! Weight matrices, and the shapes of their products.

use std::sync::Arc;

use lapidary_backend::{MatrixData, Result};
use lapidary_gguf::GgmlType;

use crate::arguments::{MAX_MATRICES, Product};
use crate::device::Device;
use crate::memory::Memory;

/// Matrix rows that a block of threads computes at once; `M` of `matrix.cu`.
const fn matrix_rows(activation_rows: usize) -> usize {
    if activation_rows <= 2 { 2 } else { 4 }
}

/// Columns above which the four warps of a block share a row; as in `matrix.cu`.
const SHARED_COLUMNS: usize = 1024;

/// A weight matrix in the memory of a device, in its stored form.
pub struct CudaMatrix {
    pub(crate) ty: GgmlType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) row_bytes: usize,
    pub(crate) memory: Memory<u8>,
}

impl CudaMatrix {
    /// Copies a matrix to the device.
    pub(crate) fn new(device: &Arc<Device>, data: &MatrixData) -> Result<Self> {
        data.check()?;
        let row_bytes = data.ty.row_bytes(data.cols).expect("checked above");
        if data.rows > i32::MAX as usize / 2 || data.cols > i32::MAX as usize / 2 {
            return Err(device.unsupported(format!("{}: {} x {} elements", data.name, data.rows, data.cols)));
        }
        let memory = Memory::copied(device, &data.bytes, &data.name)?;
        Ok(Self { ty: data.ty, rows: data.rows, cols: data.cols, row_bytes, memory })
    }
}

/// One launch of a product: matrices of one type side by side.
pub(crate) struct Launch {
    pub ty: GgmlType,
    pub product: Product,
    /// Blocks of threads over the rows of all its matrices.
    pub blocks: usize,
}

/// Cuts `matrices` into runs of one type, `rows` activation rows a block.
pub(crate) fn launches(device: &Device, matrices: &[&CudaMatrix], rows: usize) -> Vec<Launch> {
    let mut all: Vec<Launch> = Vec::new();
    let mut column = 0;
    for matrix in matrices {
        let extend =
            all.last().is_some_and(|l| l.ty == matrix.ty && (l.product.n_matrices as usize) < MAX_MATRICES);
        if !extend {
            let product = Product {
                cols: matrix.cols as i32,
                row_bytes: matrix.row_bytes as u64,
                ..Product::default()
            };
            all.push(Launch { ty: matrix.ty, product, blocks: 0 });
        }
        let launch = all.last_mut().expect("pushed above");
        let at = launch.product.n_matrices as usize;
        let product = &mut launch.product;
        product.weights[at] = matrix.memory.address(device);
        product.stack_bytes[at] = (matrix.rows * matrix.row_bytes) as u64;
        product.rows[at] = matrix.rows as i32;
        product.first_block[at] = launch.blocks as i32;
        product.column[at] = column as i32;
        product.n_matrices += 1;
        let groups = if matrix.cols > SHARED_COLUMNS { 1 } else { 4 };
        launch.blocks += matrix.rows.div_ceil(matrix_rows(rows) * groups);
        column += matrix.rows;
    }
    all
}
