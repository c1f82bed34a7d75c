//! What is wrong is said, and nothing is left behind.

mod common;

use std::path::Path;

use common::Folder;
use lapidary_convert::{ConvertError, ConvertOptions, FileType, QuantizeOptions, convert, quantize};

/// Breaks a folder, converts it and gives the message; checks that the folder holds no new file.
fn message(break_it: impl FnOnce(&mut Folder, &Path)) -> String {
    let dir = tempfile::tempdir().expect("a folder");
    let mut folder = Folder::gemma4_moe();
    folder.write_sharded(dir.path());
    break_it(&mut folder, dir.path());
    let before = names(dir.path());
    let out = dir.path().join("out.gguf");
    let error =
        convert(dir.path(), &out, &ConvertOptions::new(FileType::F16), &mut |_| ()).expect_err("is broken");
    assert_eq!(names(dir.path()), before);
    error.to_string()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|e| e.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "'{part}' is not in: {message}");
    }
}

#[test]
fn a_missing_shard_is_named() {
    let found = message(|_, dir| {
        std::fs::remove_file(dir.join("model-00002-of-00002.safetensors")).expect("removed");
    });
    assert_says(&found, &["1 of 2 shards", "model-00002-of-00002.safetensors"]);
}

#[test]
fn a_truncated_shard_is_named() {
    let found = message(|_, dir| {
        let path = dir.join("model-00001-of-00002.safetensors");
        let bytes = std::fs::read(&path).expect("read");
        std::fs::write(&path, &bytes[..bytes.len() - 1]).expect("written");
    });
    assert_says(&found, &["model-00001-of-00002.safetensors", "truncated"]);
}

#[test]
fn a_wrong_shape_is_told_with_both_shapes() {
    let found = message(|folder, dir| {
        folder.add("layers.1.mlp.up_proj.weight", &[63, 32]);
        folder.write_sharded(dir);
    });
    assert_says(&found, &["layers.1.mlp.up_proj.weight", "[63, 32]", "[64, 32]", ".safetensors"]);
}

#[test]
fn an_unknown_tensor_is_named() {
    let found = message(|folder, dir| {
        folder.add("layers.1.mlp.extra.weight", &[2, 2]);
        folder.write_sharded(dir);
    });
    assert_says(&found, &["model.layers.1.mlp.extra.weight", "[2, 2]", "does not know"]);
}

#[test]
fn a_missing_tensor_is_named() {
    let found = message(|folder, dir| {
        folder.tensors.remove("model.layers.0.self_attn.q_norm.weight");
        folder.write_sharded(dir);
    });
    assert_says(&found, &["layers.0.self_attn.q_norm.weight", "[8]"]);
}

#[test]
fn broken_json_is_told_with_its_place() {
    let found = message(|_, dir| std::fs::write(dir.join("config.json"), "{\"a\": 1,\n}").expect("written"));
    assert_says(&found, &["config.json", "line 2"]);
    let found =
        message(|_, dir| std::fs::write(dir.join("model.safetensors.index.json"), "[").expect("written"));
    assert_says(&found, &["model.safetensors.index.json", "not valid JSON"]);
}

#[test]
fn a_wrong_field_is_named() {
    let found = message(|folder, dir| {
        folder.config["hidden_size"] = "wide".into();
        folder.write_config(dir);
    });
    assert_says(&found, &["config.json", "'hidden_size'", "\"wide\"", "a count"]);
    let found = message(|folder, dir| {
        folder.config["model_type"] = "llama".into();
        folder.write_config(dir);
    });
    assert_says(&found, &["'llama'", "Gemma 3 and Gemma 4"]);
}

#[test]
fn a_shard_name_cannot_lead_out_of_the_folder() {
    let found = message(|_, dir| {
        let index = r#"{"weight_map": {"a": "../secret.safetensors"}}"#;
        std::fs::write(dir.join("model.safetensors.index.json"), index).expect("written");
    });
    assert_says(&found, &["../secret.safetensors", "not a plain file name"]);
}

#[test]
fn an_output_that_cannot_be_written_is_named_with_its_size() {
    let dir = tempfile::tempdir().expect("a folder");
    Folder::gemma3().write(dir.path());
    let out = dir.path().join("no such folder/out.gguf");
    let error =
        convert(dir.path(), &out, &ConvertOptions::new(FileType::F16), &mut |_| ()).expect_err("no folder");
    assert_says(&error.to_string(), &["out.gguf", "bytes in all"]);
}

#[test]
fn a_cancelled_conversion_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    Folder::gemma4_moe().write(dir.path());
    let before = names(dir.path());
    let options = ConvertOptions::new(FileType::F16);
    let mut seen = 0;
    let result = convert(dir.path(), &dir.path().join("out.gguf"), &options, &mut |progress| {
        seen += 1;
        assert!(progress.bytes_done <= progress.bytes);
        options.cancel.cancel();
    });
    assert!(matches!(result, Err(ConvertError::Cancelled)), "{result:?}");
    assert_eq!(seen, 1);
    assert_eq!(names(dir.path()), before);
}

#[test]
fn a_file_is_not_quantised_onto_itself() {
    let dir = tempfile::tempdir().expect("a folder");
    Folder::gemma3().write(dir.path());
    let path = dir.path().join("out.gguf");
    convert(dir.path(), &path, &ConvertOptions::new(FileType::F16), &mut |_| ()).expect("converts");
    let before = std::fs::read(&path).expect("read");
    let error = quantize(&path, &path, FileType::Q8_0, &QuantizeOptions::default(), &mut |_| ())
        .expect_err("the same");
    assert_says(&error.to_string(), &["input and output at once"]);
    assert!(std::fs::read(&path).expect("read") == before);
}
