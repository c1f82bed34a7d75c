//! Gather from an embedding table in its stored type.

use lapidary_gguf::block;

use crate::matrix::CpuMatrix;

/// `out = scale * table[token]`, decoding that row alone.
///
/// # Panics
/// When the table has no such row.
pub(crate) fn embed_row(table: &CpuMatrix, token: u32, scale: f32, out: &mut [f32]) {
    block::dequantize(table.data().ty, table.row_bytes(token as usize), out)
        .expect("a matrix row holds its columns");
    for x in out {
        *x *= scale;
    }
}
