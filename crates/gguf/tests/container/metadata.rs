//! Typed access to metadata.

use std::time::{Duration, Instant};

use lapidary_gguf::{Array, Gguf, GgufWriter, Metadata, Strings, Value};

use crate::raw::{ARRAY, BOOL, F32, I32, Raw, STRING, U8, U32, U64, array, string};

fn sample() -> Metadata {
    let gguf = Raw::new()
        .pair("small", U8, [7])
        .pair("negative", I32, (-5i32).to_le_bytes())
        .pair("large", U64, (1u64 << 40).to_le_bytes())
        .pair("float", F32, 0.5f32.to_le_bytes())
        .pair("yes", BOOL, [1])
        .pair("name", STRING, string("Gemma"))
        .pair("latin", STRING, string(b"caf\xe9"))
        .pair("ints", ARRAY, array(I32, 3, &[1i32, -2, 3].map(i32::to_le_bytes).concat()))
        .pair("floats", ARRAY, array(F32, 2, &[1.5f32, -2.0].map(f32::to_le_bytes).concat()))
        .pair("flags", ARRAY, array(BOOL, 2, &[1, 0]))
        .pair("tokens", ARRAY, array(STRING, 2, &[string("<s>"), string(b"\xff\xfe")].concat()))
        .pair("nested", ARRAY, array(ARRAY, 2, &[array(U32, 0, &[]), array(U8, 1, &[9])].concat()))
        .open()
        .unwrap();
    gguf.metadata().clone()
}

#[test]
fn any_width_that_fits_is_accepted() {
    let m = sample();
    assert_eq!((m.u32("small").unwrap(), m.u64("small").unwrap(), m.i64("small").unwrap()), (7, 7, 7));
    assert_eq!((m.i64("negative").unwrap(), m.u64("large").unwrap()), (-5, 1 << 40));
    assert_eq!((m.f32("float").unwrap(), m.f32("small").unwrap()), (0.5, 7.0));
    assert_eq!((m.bool("yes").unwrap(), m.str("name").unwrap()), (true, "Gemma"));
    assert_eq!(m.i64s("ints").unwrap(), [1, -2, 3]);
    assert_eq!(m.f32s("floats").unwrap(), [1.5, -2.0]);
    assert_eq!(m.bools("flags").unwrap(), [true, false]);
    let keys: Vec<&str> = m.iter().map(|(key, _)| key).collect();
    assert_eq!(keys[..3], ["small", "negative", "large"]);
}

#[test]
fn absent_and_wrong_are_told_apart() {
    let m = sample();
    assert_eq!(m.opt_u32("absent").unwrap(), None);
    assert_eq!(m.opt_u32("small").unwrap(), Some(7));
    assert_eq!(m.u32("absent").unwrap_err().to_string(), "the file has no metadata key 'absent'");
    let errors = [
        (m.u32("name").map(drop), "metadata key 'name' holds a string, expected an unsigned 32-bit integer"),
        (
            m.u32("large").map(drop),
            "metadata key 'large' holds the u64 1099511627776, expected an unsigned 32-bit",
        ),
        (
            m.u64("negative").map(drop),
            "metadata key 'negative' holds the i32 -5, expected an integer that is not neg",
        ),
        (m.opt_f32("yes").map(drop), "metadata key 'yes' holds the bool true, expected a number"),
        (
            m.opt_str("latin").map(drop),
            "metadata key 'latin' holds a string that is not UTF-8, expected a string",
        ),
        (m.opt_bool("small").map(drop), "metadata key 'small' holds the u8 7, expected a boolean"),
        (
            m.opt_strings("ints").map(drop),
            "metadata key 'ints' holds an array of 3 i32, expected an array of strings",
        ),
        (
            m.u64s("ints").map(drop),
            "metadata key 'ints' holds an array of 3 i32, expected an array of integers that",
        ),
        (m.opt_array("float").map(drop), "metadata key 'float' holds the f32 0.5, expected an array"),
    ];
    for (found, expected) in errors {
        let found = found.unwrap_err().to_string();
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn strings_may_be_other_than_utf8() {
    let m = sample();
    let tokens = m.strings("tokens").unwrap();
    assert_eq!((tokens.get(0), tokens.get(1)), (&b"<s>"[..], &b"\xff\xfe"[..]));
    assert_eq!(tokens.get_str(0).unwrap(), "<s>");
    assert!(tokens.get_str(1).is_err());
    assert_eq!(tokens.iter().map(<[u8]>::len).collect::<Vec<_>>(), [3, 2]);
}

#[test]
fn nested_arrays_are_read() {
    let m = sample();
    let Array::Nested(inner) = m.array("nested").unwrap() else { panic!("not nested") };
    assert_eq!((inner[0].len(), inner[1].to_u64s()), (0, Some(vec![9])));
}

#[test]
fn lengths_are_compared() {
    let m = sample();
    assert_eq!(m.equal_lengths(&["tokens", "absent", "floats", "flags"]).unwrap(), Some(2));
    assert_eq!(m.equal_lengths(&["absent"]).unwrap(), None);
    assert_eq!(
        m.equal_lengths(&["tokens", "ints"]).unwrap_err().to_string(),
        "metadata key 'ints' has 3 elements, 'tokens' has 2; they must agree"
    );
    assert!(m.equal_lengths(&["tokens", "small"]).is_err());
}

/// A vocabulary of Gemma's size is indexed, not copied. The limit leaves room for a busy machine.
#[test]
fn a_large_vocabulary_opens_quickly() {
    let pieces = |n: usize| -> Strings { (0..n).map(|i| format!("piece {i}")).collect() };
    let mut writer = GgufWriter::new();
    writer.set("tokenizer.ggml.tokens", pieces(262_144)).unwrap();
    writer.set("tokenizer.ggml.merges", pieces(514_906)).unwrap();
    writer.set("tokenizer.ggml.scores", Value::from(&vec![0.0f32; 262_144][..])).unwrap();
    let bytes = writer.begin(Vec::new()).unwrap().finish().unwrap();
    let fastest = (0..5)
        .map(|_| {
            let bytes = bytes.clone().into();
            let start = Instant::now();
            let gguf = Gguf::from_bytes(bytes, "vocabulary").unwrap();
            let elapsed = start.elapsed();
            assert_eq!(
                gguf.metadata().strings("tokenizer.ggml.merges").unwrap().get(514_905),
                b"piece 514905"
            );
            elapsed
        })
        .min()
        .unwrap();
    println!("opened in {fastest:?}");
    assert!(fastest < Duration::from_millis(100), "{fastest:?}");
}
