//! What the writer refuses, and the exact bytes it makes.

use lapidary_gguf::{Array, GgmlType, Gguf, GgufWriter, Value, ValueType, WriteError};

use crate::raw::{ARRAY, Raw, STRING, U32, array, string};

#[test]
fn the_bytes_are_as_ggml_writes_them() {
    let mut writer = GgufWriter::new();
    writer.set("general.alignment", 64u32).unwrap();
    writer.set("moved", 1u32).unwrap();
    writer.set("name", "Gemma").unwrap();
    writer.set("list", Value::from(&[1u32, 2][..])).unwrap();
    writer.set("moved", 2u32).unwrap();
    writer.add_tensor("a", &[3, 1, 2, 1], GgmlType::F32).unwrap();
    writer.add_tensor("b", &[1, 1], GgmlType::F16).unwrap();
    let announced = writer.file_bytes();
    let mut data = writer.begin(Vec::new()).unwrap();
    assert_eq!(data.next_tensor().unwrap().name(), "a");
    data.start_tensor("a").unwrap();
    data.write(&[1; 20]).unwrap();
    data.write(&[2; 4]).unwrap();
    data.end_tensor().unwrap();
    data.write_tensor("b", &[3; 2]).unwrap();
    let found = data.finish().unwrap();

    let mut expected = Raw::new()
        .pair("general.alignment", U32, 64u32.to_le_bytes())
        .pair("name", STRING, string("Gemma"))
        .pair("list", ARRAY, array(U32, 2, &[1, 0, 0, 0, 2, 0, 0, 0]))
        .pair("moved", U32, 2u32.to_le_bytes())
        .tensor("a", &[3, 1, 2], 0, 0)
        .tensor("b", &[1], 1, 64)
        .data(&[[1; 20].as_slice(), &[2; 4], &[0; 40], &[3; 2], &[0; 62]].concat());
    expected.alignment = 64;
    assert_eq!(found, expected.bytes());
    assert_eq!(found.len() as u64, announced);
}

fn set(key: &str, value: impl Into<Value>) -> Result<(), WriteError> {
    GgufWriter::new().set(key, value)
}

#[test]
fn bad_metadata_is_refused() {
    assert!(set("", 1u32).is_err());
    assert!(set(&"k".repeat(65_536), 1u32).is_err());
    for bad in [Value::from(0u32), Value::from(48u32), Value::from(32u64), Value::from("32")] {
        assert!(set("general.alignment", bad).is_err());
    }
    for bad in [
        Value::Unsigned(ValueType::U8, 256),
        Value::Unsigned(ValueType::I8, 1),
        Value::Signed(ValueType::I8, -129),
        Value::Signed(ValueType::I8, 128),
        Value::Float(ValueType::U32, 1.0),
        Value::Array(Array::Fixed(ValueType::U32, vec![0; 6].into())),
        Value::Array(Array::Fixed(ValueType::String, vec![0; 8].into())),
    ] {
        let error = set("k", bad.clone()).expect_err("a value no file can hold").to_string();
        assert!(error.starts_with("metadata key 'k': "), "{error}");
    }
    for good in
        [Value::Signed(ValueType::I8, -128), Value::Unsigned(ValueType::U8, 255), Value::from(i64::MIN)]
    {
        assert!(set("k", good).is_ok());
    }
    let nest = |depth| (0..depth).fold(Array::from(&[1u8][..]), |inner, _| Array::Nested(vec![inner]));
    assert!(set("k", nest(3)).is_ok());
    assert!(set("k", nest(4)).is_err());
}

#[test]
fn bad_tensors_are_refused() {
    let mut writer = GgufWriter::new();
    writer.add_tensor("a", &[32], GgmlType::Q4_0).unwrap();
    let mut refused =
        |name: &str, shape: &[u64], ty| writer.add_tensor(name, shape, ty).unwrap_err().to_string();
    assert!(refused("a", &[1], GgmlType::F32).contains("declared twice"));
    assert!(refused("", &[1], GgmlType::F32).contains("1 to 63 bytes"));
    assert!(refused(&"n".repeat(64), &[1], GgmlType::F32).contains("1 to 63 bytes"));
    assert!(refused("b", &[], GgmlType::F32).contains("0 dimensions"));
    assert!(refused("b", &[1; 5], GgmlType::F32).contains("5 dimensions"));
    assert!(refused("b", &[4, 0], GgmlType::F32).contains("zero"));
    assert!(refused("b", &[100], GgmlType::Q4_0).contains("block of 32"));
    assert!(refused("b", &[1 << 40, 1 << 40], GgmlType::F32).contains("impossible shape"));
    // A refused tensor leaves nothing behind.
    writer.add_tensor("b", &[1], GgmlType::F32).unwrap();
}

fn two_tensors() -> lapidary_gguf::GgufDataWriter<Vec<u8>> {
    let mut writer = GgufWriter::new();
    writer.add_tensor("a", &[2], GgmlType::F32).unwrap();
    writer.add_tensor("b", &[1], GgmlType::F32).unwrap();
    writer.begin(Vec::new()).unwrap()
}

#[test]
fn wrong_lengths_are_refused() {
    for len in [0, 7, 9] {
        let error = two_tensors().write_tensor("a", &vec![0; len]).unwrap_err().to_string();
        assert_eq!(error, format!("tensor 'a' takes 8 bytes, {len} were given"));
    }
}

#[test]
fn wrong_order_is_refused() {
    let mut data = two_tensors();
    let error = data.write_tensor("b", &[0; 4]).unwrap_err().to_string();
    assert!(error.contains("'b'") && error.contains("'a' was expected"), "{error}");
    data.start_tensor("a").unwrap();
    assert!(data.start_tensor("b").unwrap_err().to_string().contains("the rest of 'a'"));
    data.write(&[0; 8]).unwrap();
    data.end_tensor().unwrap();
    data.write_tensor("b", &[0; 4]).unwrap();
    assert!(data.start_tensor("c").unwrap_err().to_string().contains("no tensor"));
    assert!(data.finish().is_ok());
}

#[test]
fn an_unfinished_file_is_refused() {
    let mut data = two_tensors();
    data.write_tensor("a", &[0; 8]).unwrap();
    let error = data.finish().unwrap_err().to_string();
    assert_eq!(error, "1 declared tensors have no data, the first is 'b'");
}

#[test]
fn metadata_of_another_file_is_taken_over() {
    let mut first = GgufWriter::new();
    first.set("tokens", ["a", "b"].into_iter().collect::<lapidary_gguf::Strings>()).unwrap();
    first.set("split.count", 3u16).unwrap();
    let bytes = first.begin(Vec::new()).unwrap().finish().unwrap();
    let gguf = Gguf::from_bytes(bytes.clone().into(), "first").unwrap();
    let mut second = GgufWriter::new();
    second.set_all(gguf.metadata()).unwrap();
    assert!(second.remove("split.count"));
    assert!(!second.remove("split.count"));
    second.set("split.count", 3u16).unwrap();
    assert_eq!(second.begin(Vec::new()).unwrap().finish().unwrap(), bytes);
}
