//! Buffers, gathers, activation functions.

use lapidary_gguf::GgmlType;

use super::Tolerance;
use super::compare::{close, same_bits};
use super::random::{Random, read, upload};
use crate::{Backend, Columns, Dims, MatrixData, ReferenceBackend, RowBatch};

/// Buffers are zeroed; uploads and downloads reach the elements named.
pub fn buffers<B: Backend>(backend: &B, _: &Tolerance) {
    let mut buffer = backend.buffer(1003).unwrap();
    assert!(read(backend, &buffer, 1003).iter().all(|&x| x == 0.0), "a new buffer is zero");
    let data = Random::new(1).normals(77);
    backend.upload(&data, &mut buffer, 901).unwrap();
    let mut found = vec![0.0; 79];
    backend.download(&buffer, 900..979, &mut found).unwrap();
    assert_eq!((found[0], found[78]), (0.0, 0.0), "neighbours of an upload");
    same_bits("upload and download", &found[1..78], &data);
}

/// [`Backend::embed`], for every type.
pub fn embed<B: Backend>(backend: &B, tolerance: &Tolerance) {
    let mut random = Random::new(2);
    for ty in GgmlType::ALL {
        let cols = if ty.is_float() { 37 } else { 3 * ty.block_len() };
        let table = random.matrix(ty, 1, 11, cols);
        let tokens = vec![10, 0, 3, 3, 7];
        let expected = embedded(&ReferenceBackend, &table, &tokens);
        let found = embedded(backend, &table, &tokens);
        close(&format!("embed {ty}"), &found, &expected, |i| tolerance.relative * expected[i].abs());
        for (r, &token) in tokens.iter().enumerate() {
            let alone = embedded(backend, &table, &[token]);
            same_bits(&format!("embed {ty}, row {r} alone"), &alone, &found[r * cols..(r + 1) * cols]);
        }
    }
}

fn embedded<B: Backend>(backend: &B, table: &MatrixData, tokens: &[u32]) -> Vec<f32> {
    let batch = RowBatch { tokens: tokens.to_vec(), positions: vec![0; tokens.len()], groups: vec![] };
    let mut rows = B::Rows::default();
    backend.upload_rows(&batch, &mut rows).unwrap();
    let matrix = backend.matrix(table.clone()).unwrap();
    let n = tokens.len() * table.cols;
    let mut out = backend.buffer(n).unwrap();
    backend.embed(&matrix, &rows, 25.3, &mut out).unwrap();
    read(backend, &out, n)
}

/// [`Backend::gather`].
pub fn gather<B: Backend>(backend: &B, _: &Tolerance) {
    for cols in [1, 17, 640] {
        let data = Random::new(3).normals(9 * cols);
        let x = upload(backend, &data);
        let rows = [8, 0, 0, 5];
        let mut out = backend.buffer(rows.len() * cols).unwrap();
        backend.gather(&x, &rows, cols, &mut out).unwrap();
        let expected: Vec<f32> =
            rows.iter().flat_map(|&r| data[r as usize * cols..][..cols].iter().copied()).collect();
        same_bits("gather", &read(backend, &out, expected.len()), &expected);
    }
}

/// [`Backend::row_dots`]: single rows of a quantised matrix, without rounding of the activations.
pub fn row_dots<B: Backend>(backend: &B, tolerance: &Tolerance) {
    let mut random = Random::new(8);
    for (ty, cols) in [(GgmlType::Q8_0, 640), (GgmlType::Q6_K, 256), (GgmlType::BF16, 37)] {
        let x = random.normals(3 * cols);
        let data = random.matrix(ty, 1, 50, cols);
        let (rows, ids) = (0..3, [49, 0, 7, 7]);
        let dots = |row: usize| {
            let found =
                backend.row_dots(&upload(backend, &x), row, &backend.matrix(data.clone()).unwrap(), &ids);
            let reference = &ReferenceBackend;
            let matrix = reference.matrix(data.clone()).unwrap();
            (found.unwrap(), reference.row_dots(&x, row, &matrix, &ids).unwrap())
        };
        for row in rows {
            let (found, expected) = dots(row);
            let size = x[row * cols..(row + 1) * cols].iter().map(|v| v.abs()).sum::<f32>();
            close(&format!("row dots of {ty}"), &found, &expected, |_| tolerance.relative * size);
        }
    }
}

/// [`Backend::gated_activation`]: columns inside wider rows, large and tiny arguments.
pub fn gated_activation<B: Backend>(backend: &B, tolerance: &Tolerance) {
    let mut random = Random::new(4);
    for (rows, cols) in [(1, 1), (1, 2048), (3, 33), (7, 704), (65, 130)] {
        let stride = 2 * cols + 5;
        let scale = [0.01, 1.0, 10.0][random.below(3)];
        let data: Vec<f32> = random.normals(rows * stride).into_iter().map(|x| scale * x).collect();
        let (found, expected) =
            (gated(backend, &data, rows, cols), gated(&ReferenceBackend, &data, rows, cols));
        let magnitude = |i: usize| {
            let row = &data[i / cols * stride..];
            (row[1 + i % cols] * row[cols + 2 + i % cols]).abs()
        };
        let what = format!("gated activation of {rows} x {cols}");
        close(&what, &found, &expected, |i| tolerance.relative * magnitude(i));
        for r in 0..rows {
            let alone = gated(backend, &data[r * stride..(r + 1) * stride], 1, cols);
            same_bits(&format!("{what}, row {r} alone"), &alone, &found[r * cols..(r + 1) * cols]);
        }
    }
    let extremes = [0.0, 60.0, -60.0, 1e4, -1e4, 1e-20, -1e-20, f32::NAN];
    for gate in extremes {
        let (found, expected) = (
            gated(backend, &[0.0, gate, 9.0, 2.0], 1, 1),
            gated(&ReferenceBackend, &[0.0, gate, 9.0, 2.0], 1, 1),
        );
        close(&format!("gated activation at {gate}"), &found, &expected, |_| tolerance.relative * gate.abs());
    }
}

/// Rows of one unused column, gates, another, ups, and the rest of the stride.
fn gated<B: Backend>(backend: &B, data: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    let buffer = &upload(backend, data);
    let stride = data.len() / rows;
    let mut out = backend.buffer(rows * cols).unwrap();
    let (gate, up) = (Columns { buffer, offset: 1, stride }, Columns { buffer, offset: cols + 2, stride });
    backend.gated_activation(gate, up, Dims { rows, cols }, &mut out).unwrap();
    read(backend, &out, rows * cols)
}

/// [`Backend::softcap`]: of the first elements only, whatever their place.
pub fn softcap<B: Backend>(backend: &B, tolerance: &Tolerance) {
    let mut random = Random::new(5);
    for (len, cap) in [(1, 30.0), (100, 30.0), (9001, 5.0), (70_001, 30.0)] {
        let mut data: Vec<f32> = random.normals(len + 3).into_iter().map(|x| 40.0 * x).collect();
        data[0] = 1e-3;
        let (found, expected) =
            (capped(backend, &data, cap, len), capped(&ReferenceBackend, &data, cap, len));
        close(&format!("softcap of {len}"), &found, &expected, |i| tolerance.relative * expected[i].abs());
        let at = random.below(len);
        let alone = capped(backend, &data[at..at + 1], cap, 1);
        same_bits(&format!("softcap of element {at} of {len} alone"), &alone, &found[at..at + 1]);
    }
}

fn capped<B: Backend>(backend: &B, data: &[f32], cap: f32, len: usize) -> Vec<f32> {
    let mut x = upload(backend, data);
    backend.softcap(&mut x, cap, len).unwrap();
    read(backend, &x, data.len())
}
