//! What the reader accepts, and how it refuses the rest.

use lapidary_gguf::{GgmlType, Gguf, GgufError};

use crate::raw::{ARRAY, BOOL, I16, Raw, STRING, U8, U32, array, string};

#[track_caller]
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

fn from_bytes(bytes: &[u8]) -> String {
    Gguf::from_bytes(bytes.to_vec().into(), "model.gguf").expect_err("no GGUF").to_string()
}

#[test]
fn a_small_file_is_read() {
    let data: Vec<u8> = (0..64 + 34).collect();
    let gguf = Raw::new()
        .pair("general.architecture", STRING, string("gemma4"))
        .tensor("a", &[4, 2], GgmlType::F32 as u32, 0)
        .tensor("b", &[32, 1], GgmlType::Q8_0 as u32, 64)
        .data(&data)
        .open()
        .unwrap();
    assert_eq!((gguf.version(), gguf.alignment(), gguf.tensors().len()), (3, 32, 2));
    let b = gguf.tensor("b").unwrap();
    assert_eq!(
        (b.shape(), b.elements(), b.bytes(), b.ty().unwrap()),
        (&[32, 1][..], 32, Some(34), GgmlType::Q8_0)
    );
    assert_eq!(*gguf.data(b).unwrap(), data[64..98]);
    assert_eq!(*gguf.data(gguf.tensor("a").unwrap()).unwrap(), data[..32]);
    assert!(gguf.tensor("c").is_none());
    assert_eq!(gguf.file_bytes(), 160 + 98);
    assert_eq!(gguf.paths().collect::<Vec<_>>(), ["model.gguf"]);
}

#[test]
fn version_2_and_other_alignments_are_read() {
    let mut raw = Raw::new()
        .pair("general.alignment", U32, 128u32.to_le_bytes())
        .tensor("a", &[1], 0, 0)
        .tensor("b", &[1], 0, 128)
        .data(&[7; 132]);
    (raw.version, raw.alignment) = (2, 128);
    let gguf = raw.open().unwrap();
    assert_eq!((gguf.version(), gguf.alignment()), (2, 128));
    assert_eq!(*gguf.data(gguf.tensor("b").unwrap()).unwrap(), [7; 4]);
}

#[test]
fn a_tensor_without_dimensions_is_one_element() {
    let gguf = Raw::new().tensor("scalar", &[], 0, 0).data(&[0; 4]).open().unwrap();
    assert_eq!(gguf.tensors()[0].shape(), [1]);
}

#[test]
fn other_files_are_named_as_what_they_are() {
    assert_says(&from_bytes(b""), &["model.gguf", "not a GGUF file", "empty"]);
    assert_says(&from_bytes(b"{\"model\": \"gemma\"}"), &["not a GGUF file", "{\\\"model\\\": \\\"gem"]);
    assert_says(&from_bytes(b"\x7fELF"), &["begins with \"\\x7fELF\""]);
    assert_says(&from_bytes(b"GG"), &["truncated", "2 more bytes"]);
    let with_version = |version: u32| [&b"GGUF"[..], &version.to_le_bytes(), &[0; 16]].concat();
    assert_says(&from_bytes(&with_version(1)), &["version 1", "2 and 3", "current tool"]);
    assert_says(&from_bytes(&with_version(4)), &["version 4", "2 and 3"]);
    let swapped = Gguf::from_bytes(with_version(3u32.swap_bytes()).into(), "model.gguf").unwrap_err();
    assert!(matches!(swapped, GgufError::BigEndian { version: 0x0300_0000, .. }));
    assert_says(&swapped.to_string(), &["big-endian", "convert it"]);
}

#[test]
fn missing_bytes_are_counted() {
    let raw = Raw::new().tensor("a", &[8], 0, 0).tensor("b", &[16], 0, 32).data(&[0; 96]);
    let whole = raw.bytes();
    // All missing bytes are counted, and the first tensor that is cut off is named.
    let cut = &whole[..whole.len() - 70];
    assert_says(&from_bytes(cut), &["truncated", "tensor a", "70 more bytes"]);
    let cut = &whole[..whole.len() - 3];
    assert_says(&from_bytes(cut), &["truncated", "tensor b", "3 more bytes"]);
    assert_says(&from_bytes(&whole[..40]), &["truncated", "list of 2 tensors", "more bytes"]);
    assert_says(&from_bytes(&whole[..10]), &["the tensor count", "6 more bytes"]);
}

#[test]
fn lying_counts_are_refused() {
    let mut raw = Raw::new();
    raw.n_tensors = Some(u64::MAX);
    assert_says(&raw.error(), &["18446744073709551615 tensors"]);
    let mut raw = Raw::new();
    raw.n_pairs = Some(1 << 40);
    assert_says(&raw.error(), &["1099511627776 metadata entries"]);
    let mut raw = Raw::new().data(&[0; 1 << 20]);
    raw.n_pairs = Some(20_000);
    assert_says(&raw.error(), &["20000 metadata entries", "at most 16384"]);
    let mut raw = Raw::new().data(&[0; 1 << 22]);
    raw.n_tensors = Some(70_000);
    assert_says(&raw.error(), &["70000 tensors", "at most 65536"]);
    for ty in [U8, U32, STRING, ARRAY] {
        let raw = Raw::new().pair("list", ARRAY, array(ty, u64::MAX / 2, &[0; 32]));
        assert_says(&raw.error(), &["'list'", "9223372036854775807"]);
    }
    let raw = Raw::new().pair("text", STRING, (u64::MAX - 3).to_le_bytes());
    assert_says(&raw.error(), &["truncated", "text"]);
}

#[test]
fn bad_keys_and_values_are_refused() {
    assert_says(&Raw::new().pair("", U8, [1]).error(), &["key 0", "empty"]);
    assert_says(&Raw::new().pair("k", U8, [1]).pair("k", U8, [1]).error(), &["'k'", "twice"]);
    assert_says(&Raw::new().pair("k", 13, [0; 8]).error(), &["'k'", "value type 13"]);
    assert_says(&Raw::new().pair("k", ARRAY, array(99, 0, &[])).error(), &["'k'", "value type 99"]);
    assert_says(&Raw::new().pair("k", BOOL, [2]).error(), &["'k'", "boolean 2"]);
    assert_says(&Raw::new().pair("k", ARRAY, array(BOOL, 3, &[0, 1, 7])).error(), &["'k'", "boolean 7"]);
    assert_says(&Raw::new().pair(&"k".repeat(70_000), U8, [1]).error(), &["length of 70000", "65535"]);
}

#[test]
fn arrays_nest_to_a_limit() {
    let nest = |depth: usize| (0..depth).fold(array(U8, 2, &[5, 6]), |inner, _| array(ARRAY, 1, &inner));
    assert!(Raw::new().pair("k", ARRAY, nest(3)).open().is_ok());
    for depth in [4, 2000] {
        assert_says(&Raw::new().pair("k", ARRAY, nest(depth)).error(), &["'k'", "deeper than 4"]);
    }
    let many = array(ARRAY, 70_000, &array(U8, 0, &[]).repeat(70_000));
    assert_says(&Raw::new().pair("k", ARRAY, many).error(), &["65536 arrays inside arrays"]);
}

#[test]
fn bad_alignments_are_refused() {
    for bad in [0u32, 3, 48, 1 << 25, u32::MAX] {
        let raw = Raw::new().pair("general.alignment", U32, bad.to_le_bytes());
        assert_says(&raw.error(), &["general.alignment", &bad.to_string(), "power of two"]);
    }
    let raw = Raw::new().pair("general.alignment", STRING, string("32"));
    assert_says(&raw.error(), &["'general.alignment'", "a string"]);
    let raw = Raw::new().pair("general.alignment", I16, (-32i16).to_le_bytes());
    assert_says(&raw.error(), &["'general.alignment'", "i16 -32"]);
}

#[test]
fn bad_shapes_are_refused() {
    let with =
        |shape: &[u64], ty: GgmlType| Raw::new().tensor("t", shape, ty as u32, 0).data(&[0; 64]).error();
    assert_says(&with(&[4, 0], GgmlType::F32), &["tensor t", "zero", "[4, 0]"]);
    // The product wraps to 4.
    assert_says(&with(&[1 << 63, 2, 1, 4], GgmlType::F32), &["tensor t", "impossible shape"]);
    assert_says(&with(&[(1 << 62) + 1, 4], GgmlType::F32), &["tensor t", "impossible shape"]);
    assert_says(&with(&[u64::MAX], GgmlType::F16), &["tensor t", "impossible shape"]);
    assert_says(&with(&[1, 1, 1, 1, 1], GgmlType::F32), &["tensor t", "5 dimensions", "at most 4"]);
    assert_says(&with(&[100, 32], GgmlType::Q4_0), &["tensor t", "rows of 100", "Q4_0's block of 32"]);
    assert_says(&with(&[128, 2], GgmlType::Q4_K), &["tensor t", "rows of 128", "Q4_K's block of 256"]);
}

#[test]
fn bad_places_are_refused() {
    let raw = Raw::new().tensor("t", &[1], 0, 8).data(&[0; 64]);
    assert_says(&raw.error(), &["tensor t", "aligned to 32"]);
    let raw = Raw::new().tensor("t", &[1], 0, u64::MAX - 31).data(&[0; 64]);
    assert_says(&raw.error(), &["tensor t", "beyond any file"]);
    let raw = Raw::new().tensor("t", &[1], 0, 1 << 40).data(&[0; 64]);
    assert_says(&raw.error(), &["truncated", "tensor t"]);
    let raw = Raw::new().tensor("a", &[9], 0, 0).tensor("b", &[1], 0, 32).data(&[0; 64]);
    assert_says(&raw.error(), &["tensors a and b overlap"]);
    let raw = Raw::new().tensor("a", &[1], 0, 32).tensor("b", &[1], 0, 32).data(&[0; 64]);
    assert_says(&raw.error(), &["overlap"]);
    let raw = Raw::new().tensor("a", &[1], 0, 0).tensor("a", &[1], 0, 32).data(&[0; 64]);
    assert_says(&raw.error(), &["tensor a", "twice"]);
    let raw = Raw::new().tensor("", &[1], 0, 0).data(&[0; 64]);
    assert_says(&raw.error(), &["the name of tensor 0", "empty"]);
}

#[test]
fn files_with_unread_types_can_be_listed() {
    let gguf = Raw::new()
        .tensor("packed", &[256], 16, 0)
        .tensor("future", &[3], 999, 96)
        .tensor("plain", &[2], 0, 128)
        .data(&[0; 136])
        .open()
        .unwrap();
    let listed: Vec<_> = gguf.tensors().iter().map(|t| (t.type_name(), t.bytes())).collect();
    assert_eq!(
        listed,
        [("IQ2_XXS".into(), Some(66)), ("unknown type 999".into(), None), ("F32".into(), Some(8))]
    );
    let error = gguf.data(gguf.tensor("packed").unwrap()).unwrap_err().to_string();
    assert_says(&error, &["tensor packed", "IQ2_XXS", "known: F32, F16, Q4_0"]);
    let error = gguf.data(gguf.tensor("future").unwrap()).unwrap_err().to_string();
    assert_says(&error, &["tensor future", "unknown type 999"]);
    assert!(gguf.data(gguf.tensor("plain").unwrap()).is_ok());
}

#[test]
fn files_are_opened_by_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let error = Gguf::open(&path).unwrap_err().to_string();
    assert_says(&error, &["cannot read", "m.gguf"]);
    assert_says(&Gguf::open(dir.path()).unwrap_err().to_string(), &["cannot read", "directory"]);
    std::fs::write(&path, b"").unwrap();
    assert_says(&Gguf::open(&path).unwrap_err().to_string(), &["m.gguf", "empty"]);
    std::fs::write(&path, Raw::new().tensor("a", &[1], 0, 0).data(&[1, 2, 3, 4]).bytes()).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let data = gguf.data(&gguf.tensors()[0]).unwrap();
    assert!(data.is_mapped());
    // Data outlives the model it came from.
    drop(gguf);
    assert_eq!(*data, [1, 2, 3, 4]);
}
