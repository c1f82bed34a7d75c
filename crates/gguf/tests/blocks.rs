//! Block formats against golden files from the `gguf` Python package and llama.cpp (`tools/make_block_goldens.py`).

use std::path::{Path, PathBuf};

use lapidary_gguf::GgmlType;
use lapidary_gguf::block::{QuantizeError, dequantize, dequantize_row, quantize};

const N_PER_ROW: usize = 512;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    let path = data(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn floats(name: &str) -> Vec<f32> {
    bytes(name).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn file(ty: GgmlType, folder: &str, kind: &str) -> String {
    format!("{folder}/{}.{kind}", ty.name().to_lowercase())
}

#[test]
fn decoding_is_bit_exact() {
    for ty in GgmlType::ALL.into_iter().filter(|&ty| ty != GgmlType::F32) {
        let (blocks, expected) =
            (bytes(&file(ty, "decode", "blocks")), floats(&file(ty, "decode", "values")));
        assert!(expected.len() >= 300, "{ty}: the golden file is too short");
        let mut found = vec![0.0; expected.len()];
        dequantize(ty, &blocks, &mut found).unwrap();
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            // Converting a half that is a signalling NaN may or may not make it a quiet one.
            let same = found.to_bits() == expected.to_bits()
                || (ty == GgmlType::F16 && found.is_nan() && expected.is_nan());
            assert!(same, "{ty}, element {i}: {found:e}, expected {expected:e}");
        }
    }
}

#[test]
fn f32_is_copied() {
    let values = [1.5f32, -0.0, f32::MIN_POSITIVE / 2.0];
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut found = [0.0; 3];
    dequantize(GgmlType::F32, &bytes, &mut found).unwrap();
    assert_eq!(found.map(f32::to_bits), values.map(f32::to_bits));
    let mut again = Vec::new();
    quantize(GgmlType::F32, &values, 3, None, &mut again).unwrap();
    assert_eq!(again, bytes);
}

#[test]
fn rows_are_found_in_a_matrix() {
    let blocks = bytes("encode/q4_k.plain");
    let mut all = vec![0.0; blocks.len() / 144 * 256];
    dequantize(GgmlType::Q4_K, &blocks, &mut all).unwrap();
    let mut row = vec![0.0; N_PER_ROW];
    for (r, expected) in all.chunks_exact(N_PER_ROW).enumerate() {
        dequantize_row(GgmlType::Q4_K, &blocks, r, &mut row).unwrap();
        assert_eq!(row, expected);
    }
    assert!(dequantize_row(GgmlType::Q4_K, &blocks, 0, &mut row[..100]).is_err());
}

#[test]
fn sizes_are_checked() {
    for ty in GgmlType::ALL {
        let mut out = vec![0.0; 512];
        let len = ty.row_bytes(512).unwrap();
        assert!(dequantize(ty, &vec![0; len], &mut out).is_ok());
        assert!(dequantize(ty, &vec![0; len - 1], &mut out).is_err());
        assert!(dequantize(ty, &vec![0; len + 1], &mut out).is_err());
    }
}

/// Compares block by block, so that a difference names its place.
fn assert_same_blocks(ty: GgmlType, what: &str, found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "{ty} {what}");
    let size = ty.block_bytes();
    for (b, (found, expected)) in found.chunks_exact(size).zip(expected.chunks_exact(size)).enumerate() {
        let row = b * ty.block_len() / N_PER_ROW;
        assert_eq!(found, expected, "{ty} {what}, row {row}, block {b}");
    }
}

fn encoded(ty: GgmlType, imatrix: Option<&[f32]>) -> Vec<u8> {
    let mut out = Vec::new();
    quantize(ty, &floats("encode/input.f32"), N_PER_ROW, imatrix, &mut out).unwrap();
    out
}

fn written_types() -> impl Iterator<Item = GgmlType> {
    GgmlType::ALL.into_iter().filter(|&ty| !matches!(ty, GgmlType::F32 | GgmlType::MXFP4))
}

#[test]
fn encoding_without_importances_is_byte_exact() {
    for ty in written_types() {
        assert_same_blocks(ty, "plain", &encoded(ty, None), &bytes(&file(ty, "encode", "plain")));
    }
}

#[test]
fn encoding_with_importances_is_byte_exact() {
    let importance = floats("encode/importance.f32");
    for ty in written_types() {
        let uses_importances = !ty.is_float() && ty != GgmlType::Q8_0;
        let kind = if uses_importances { "weighted" } else { "plain" };
        assert_same_blocks(ty, kind, &encoded(ty, Some(&importance)), &bytes(&file(ty, "encode", kind)));
    }
}

#[test]
fn what_cannot_be_encoded_is_refused() {
    let mut out = Vec::new();
    let mut x = vec![1.0f32; 512];
    let mut refused =
        |ty, x: &[f32], n, imatrix: Option<&[f32]>| quantize(ty, x, n, imatrix, &mut out).unwrap_err();
    assert!(matches!(refused(GgmlType::MXFP4, &x, 512, None), QuantizeError::Unsupported(_)));
    assert!(matches!(refused(GgmlType::Q4_K, &x, 128, None), QuantizeError::RowLength { .. }));
    assert!(matches!(refused(GgmlType::Q4_K, &x, 0, None), QuantizeError::RowLength { .. }));
    assert!(matches!(refused(GgmlType::Q8_0, &x, 320, None), QuantizeError::Elements { .. }));
    for len in [0, 511] {
        let short = vec![1.0; len];
        assert!(matches!(
            refused(GgmlType::Q4_0, &x, 512, Some(&short)),
            QuantizeError::ImportanceLength { .. }
        ));
    }
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        let importance = [vec![1.0; 511], vec![bad]].concat();
        let error = refused(GgmlType::Q4_0, &x, 512, Some(&importance));
        assert!(matches!(error, QuantizeError::Importance { index: 511, .. }));
    }
    x[7] = f32::NEG_INFINITY;
    let error = refused(GgmlType::Q8_0, &x, 512, None);
    assert_eq!(error.to_string(), "element 7 is -inf; only finite numbers can be quantised");
    assert!(out.is_empty());
}
