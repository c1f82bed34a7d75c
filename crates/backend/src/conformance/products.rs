//! Matrix products.

use lapidary_gguf::{GgmlType, block};

use super::compare::{close, same_bits};
use super::random::{Random, read, upload};
use super::{Activations, Tolerance};
use crate::{Backend, MatrixData, ReferenceBackend};

/// What columns that no product writes must keep.
const UNTOUCHED: f32 = -77.0;

/// [`Backend::linear`]: several matrices of different types side by side, gaps between output rows.
pub fn linear<B: Backend>(backend: &B, tolerance: &Tolerance) {
    let mut random = Random::new(20);
    let types = [
        vec![GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::Q4_K],
        vec![GgmlType::Q8_0, GgmlType::Q4_0],
        vec![GgmlType::F32, GgmlType::Q5_0, GgmlType::BF16],
        vec![GgmlType::Q3_K],
    ];
    for types in types {
        for n_rows in [1, 2, 7, 33] {
            let matrices: Vec<MatrixData> = types
                .iter()
                .map(|&ty| {
                    let rows = 1 + random.below(70);
                    random.matrix(ty, 1, rows, 512)
                })
                .collect();
            let x = random.activations(n_rows * 512);
            let gap = random.below(3);
            check(backend, tolerance, &matrices, &x, n_rows, gap);
        }
    }
}

/// [`Backend::linear`] of each type by itself, columns down to one block.
pub fn linear_of_every_type<B: Backend>(backend: &B, tolerance: &Tolerance) {
    let mut random = Random::new(21);
    for ty in GgmlType::ALL {
        let columns = if ty.is_float() { [1, 77, 640] } else { [1, 2, 5].map(|n| n * ty.block_len()) };
        for cols in columns {
            for n_rows in [1, 3, 18] {
                let matrix = random.matrix(ty, 1, 29, cols);
                let x = random.activations(n_rows * cols);
                check(backend, tolerance, &[matrix], &x, n_rows, 0);
            }
        }
    }
}

fn check<B: Backend>(
    backend: &B,
    tolerance: &Tolerance,
    matrices: &[MatrixData],
    x: &[f32],
    n_rows: usize,
    gap: usize,
) {
    let n_out: usize = matrices.iter().map(|m| m.rows).sum();
    let (cols, stride) = (matrices[0].cols, n_out + gap);
    let found = multiplied(backend, matrices, x, n_rows, stride);
    let expected = multiplied(&ReferenceBackend, matrices, x, n_rows, stride);
    let types: Vec<&str> = matrices.iter().map(|m| m.ty.name()).collect();
    let what = format!("linear {types:?}, {n_out} x {cols}, {n_rows} rows");
    let bounds: Vec<Vec<f32>> = matrices.iter().map(|m| bounds(tolerance, m, 0, x)).collect();
    close(&what, &found, &expected, |i| {
        let (row, mut column) = (i / stride, i % stride);
        for (matrix, bounds) in matrices.iter().zip(&bounds) {
            if column < matrix.rows {
                return bounds[row * matrix.rows + column];
            }
            column -= matrix.rows;
        }
        0.0
    });
    for r in 0..n_rows {
        let alone = multiplied(backend, matrices, &x[r * cols..(r + 1) * cols], 1, stride);
        same_bits(&format!("{what}, row {r} alone"), &alone, &found[r * stride..(r + 1) * stride]);
    }
}

fn multiplied<B: Backend>(
    backend: &B,
    matrices: &[MatrixData],
    x: &[f32],
    n_rows: usize,
    stride: usize,
) -> Vec<f32> {
    let x = upload(backend, x);
    let matrices: Vec<B::Matrix> = matrices.iter().map(|m| backend.matrix(m.clone()).unwrap()).collect();
    let matrices: Vec<&B::Matrix> = matrices.iter().collect();
    let mut out = upload(backend, &vec![UNTOUCHED; n_rows * stride]);
    backend.linear(&x, n_rows, &matrices, &mut out, stride).unwrap();
    read(backend, &out, n_rows * stride)
}

/// The largest error that a product may have, `[rows of x, rows of the matrix]`.
///
/// Rounding an activation of a block of greatest magnitude `a` to 8 bits moves it by at most `a / 254`. The bound
/// is the smaller of the sum of what these errors can do and of eight standard deviations of their sum, where a
/// rounding error is uniform.
pub(super) fn bounds(tolerance: &Tolerance, matrix: &MatrixData, index: usize, x: &[f32]) -> Vec<f32> {
    let (rows, cols, block_len) = (matrix.rows, matrix.cols, matrix.ty.block_len());
    let mut weights = vec![0.0; matrix.stack * rows * cols];
    block::dequantize(matrix.ty, &matrix.bytes, &mut weights).unwrap();
    let weights = &weights[index * rows * cols..(index + 1) * rows * cols];
    let rounded = tolerance.activations == Activations::Rounded8 && !matrix.ty.is_float();
    let bound = |w: &[f32], x: &[f32]| {
        let terms: f32 = w.iter().zip(x).map(|(w, x)| (w * x).abs()).sum();
        let (mut worst, mut variance) = (0.0, 0.0);
        if rounded {
            for (w, x) in w.chunks(block_len).zip(x.chunks(block_len)) {
                let step = x.iter().fold(0.0, |a: f32, x| a.max(x.abs())) / 127.0;
                worst += w.iter().map(|w| w.abs()).sum::<f32>() * step / 2.0;
                variance += w.iter().map(|w| w * w).sum::<f32>() * step * step / 12.0;
            }
        }
        worst.min(8.0 * f32::sqrt(variance)) + tolerance.relative * terms
    };
    x.chunks_exact(cols).flat_map(|x| weights.chunks_exact(cols).map(move |w| bound(w, x))).collect()
}
