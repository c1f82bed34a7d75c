//! What holds for all files: written files read back the same, damaged ones never cause a panic.

use lapidary_gguf::{Array, GgmlType, Gguf, GgufWriter, Strings, Value, block};
use proptest::collection::vec;
use proptest::prelude::*;

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e30f32..1e30).prop_map(Value::from),
        any::<f64>().prop_filter("NaN is not equal to itself", |x| !x.is_nan()).prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ]
}

fn array() -> impl Strategy<Value = Array> {
    let flat = prop_oneof![
        vec(any::<u16>(), 0..9).prop_map(|v| Array::from(&v[..])),
        vec(any::<i32>(), 0..9).prop_map(|v| Array::from(&v[..])),
        vec(any::<f32>(), 0..9).prop_map(|v| Array::from(&v[..])),
        vec(any::<bool>(), 0..9).prop_map(|v| Array::from(&v[..])),
        vec(vec(any::<u8>(), 0..9), 0..9).prop_map(|v| Array::Strings(v.into_iter().collect::<Strings>())),
    ];
    flat.prop_recursive(3, 16, 3, |inner| vec(inner, 0..3).prop_map(Array::Nested))
}

#[derive(Clone, Debug)]
struct Tensor {
    shape: Vec<u64>,
    ty: GgmlType,
    seed: u8,
}

impl Tensor {
    fn data(&self) -> Vec<u8> {
        let elements: u64 = self.shape.iter().product();
        vec![self.seed; self.ty.row_bytes(elements as usize).unwrap()]
    }

    fn significant_shape(&self) -> &[u64] {
        let end = self.shape.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1);
        &self.shape[..end]
    }
}

fn tensor() -> impl Strategy<Value = Tensor> {
    let ty = proptest::sample::select(GgmlType::ALL.to_vec());
    (ty, vec(1u64..4, 1..5), any::<u8>()).prop_map(|(ty, mut shape, seed)| {
        shape[0] *= ty.block_len() as u64;
        Tensor { shape, ty, seed }
    })
}

#[derive(Clone, Debug)]
struct Model {
    alignment: Option<u32>,
    metadata: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
}

fn model() -> impl Strategy<Value = Model> {
    let value = prop_oneof![scalar(), array().prop_map(Value::from)];
    (proptest::option::of(0u32..9), vec(value, 0..8), vec(tensor(), 0..5)).prop_map(
        |(shift, values, tensors)| {
            let metadata =
                values.into_iter().enumerate().map(|(i, value)| (format!("key.{i}"), value)).collect();
            Model { alignment: shift.map(|shift| 1 << shift), metadata, tensors }
        },
    )
}

impl Model {
    fn bytes(&self) -> Vec<u8> {
        let mut writer = GgufWriter::new();
        if let Some(alignment) = self.alignment {
            writer.set("general.alignment", alignment).unwrap();
        }
        for (key, value) in &self.metadata {
            writer.set(key, value.clone()).unwrap();
        }
        for (i, tensor) in self.tensors.iter().enumerate() {
            writer.add_tensor(&format!("t{i}"), &tensor.shape, tensor.ty).unwrap();
        }
        let announced = writer.file_bytes();
        let mut data = writer.begin(Vec::new()).unwrap();
        for (i, tensor) in self.tensors.iter().enumerate() {
            data.write_tensor(&format!("t{i}"), &tensor.data()).unwrap();
        }
        let bytes = data.finish().unwrap();
        assert_eq!(bytes.len() as u64, announced);
        bytes
    }
}

/// Values as text; arrays compare by their elements.
fn text(value: &Value) -> String {
    fn of_array(array: &Array) -> String {
        match array {
            Array::Fixed(ty, bytes) => format!("{ty:?} {:?}", &**bytes),
            Array::Strings(strings) => format!("{:?}", strings.iter().collect::<Vec<_>>()),
            Array::Nested(inner) => format!("{:?}", inner.iter().map(of_array).collect::<Vec<_>>()),
        }
    }
    match value {
        Value::Array(array) => of_array(array),
        Value::String(bytes) => format!("{:?}", &**bytes),
        other => format!("{other:?}"),
    }
}

/// Opens the bytes and looks at everything in them. A damaged file may still be readable; nothing may panic.
fn explore(bytes: Vec<u8>) -> bool {
    let len = bytes.len();
    let Ok(gguf) = Gguf::from_bytes(bytes.into(), "damaged") else { return false };
    for (key, value) in gguf.metadata().iter() {
        let _ = (text(value), value.describe(), gguf.metadata().opt_u32(key), gguf.metadata().opt_str(key));
    }
    for tensor in gguf.tensors() {
        let Ok(data) = gguf.data(tensor) else { continue };
        assert!(data.len() <= len);
        let mut values = vec![0.0; tensor.elements() as usize];
        block::dequantize(tensor.ty().unwrap(), &data, &mut values).unwrap();
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn written_files_read_back_the_same(model in model()) {
        let gguf = Gguf::from_bytes(model.bytes().into(), "written").unwrap();
        prop_assert_eq!(gguf.alignment(), u64::from(model.alignment.unwrap_or(32)));
        let found: Vec<_> = gguf.metadata().iter().filter(|(key, _)| *key != "general.alignment")
            .map(|(key, value)| (key.to_owned(), text(value))).collect();
        let expected: Vec<_> = model.metadata.iter().map(|(key, value)| (key.clone(), text(value))).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(gguf.tensors().len(), model.tensors.len());
        for (found, expected) in gguf.tensors().iter().zip(&model.tensors) {
            prop_assert_eq!(found.shape(), expected.significant_shape());
            prop_assert_eq!(found.ty().unwrap(), expected.ty);
            prop_assert_eq!(&*gguf.data(found).unwrap(), &expected.data()[..]);
        }
        prop_assert!(explore(model.bytes()));
    }

    #[test]
    fn truncated_files_are_refused(model in model(), cut in any::<proptest::sample::Index>()) {
        let bytes = model.bytes();
        let data_end = bytes.len() - padding_after_data(&model);
        let kept = cut.index(bytes.len());
        let readable = explore(bytes[..kept].to_vec());
        // Padding may be missing, and without tensors the padding behind the header too.
        prop_assert!(!readable || model.tensors.is_empty() || kept >= data_end);
    }

    #[test]
    fn damaged_files_do_not_panic(
        model in model(),
        flips in vec((any::<proptest::sample::Index>(), 0u8..8), 1..6),
    ) {
        let mut bytes = model.bytes();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        explore(bytes);
    }

    #[test]
    fn lying_fields_do_not_panic(
        model in model(),
        at in any::<proptest::sample::Index>(),
        lie in prop_oneof![any::<u64>(), Just(u64::MAX), Just(1 << 63), Just(0), Just(u64::MAX - 31), 0u64..300],
    ) {
        let mut bytes = model.bytes();
        let at = at.index(bytes.len() - 7);
        bytes[at..at + 8].copy_from_slice(&lie.to_le_bytes());
        explore(bytes);
    }

    #[test]
    fn noise_does_not_panic(noise in vec(any::<u8>(), 0..400)) {
        explore(noise.clone());
        explore([b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0".as_slice(), &noise].concat());
    }
}

fn padding_after_data(model: &Model) -> usize {
    let alignment = model.alignment.unwrap_or(32) as usize;
    model.tensors.last().map_or(0, |last| {
        let len = last.data().len();
        len.next_multiple_of(alignment) - len
    })
}
