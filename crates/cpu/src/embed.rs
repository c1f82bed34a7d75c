//! Rows of a table in its stored type: gathered, or multiplied exactly.

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

/// Exact products of `x` with single rows of `matrix`, summed in `f64`.
///
/// # Panics
/// When the matrix has no such row.
pub(crate) fn row_dots(x: &[f32], matrix: &CpuMatrix, ids: &[u32]) -> Vec<f32> {
    let mut values = vec![0.0; x.len()];
    ids.iter()
        .map(|&id| {
            embed_row(matrix, id, 1.0, &mut values);
            x.iter().zip(&values).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>() as f32
        })
        .collect()
}
