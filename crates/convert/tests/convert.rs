//! Whole conversions of small made-up folders.

mod common;

use common::Folder;
use lapidary_convert::{ConvertOptions, FileType, convert};
use lapidary_gguf::{GgmlType, Gguf, block};
use serde_json::json;
use tempfile::TempDir;

/// Converts a folder and opens the result.
fn converted(folder: &Folder, file_type: FileType) -> (TempDir, Gguf, Vec<String>) {
    let dir = tempfile::tempdir().expect("a folder");
    folder.write(dir.path());
    converted_dir(dir, file_type)
}

fn converted_dir(dir: TempDir, file_type: FileType) -> (TempDir, Gguf, Vec<String>) {
    let out = dir.path().join("out.gguf");
    let report = convert(dir.path(), &out, &ConvertOptions::new(file_type), &mut |_| ()).expect("converts");
    assert_eq!(report.bytes, std::fs::metadata(&out).expect("written").len());
    let gguf = Gguf::open(&out).expect("a GGUF file");
    assert_eq!(report.tensors, gguf.tensors().len());
    (dir, gguf, report.notes)
}

fn values(gguf: &Gguf, name: &str) -> Vec<f32> {
    let info = gguf.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
    let mut out = vec![0.0; info.elements() as usize];
    block::dequantize(info.ty().expect("known"), &gguf.data(info).expect("data"), &mut out).expect("decodes");
    out
}

#[test]
fn gemma4_tensors_keep_their_elements_under_their_new_names() {
    let folder = Folder::gemma4_moe();
    let (_dir, gguf, _) = converted(&folder, FileType::BF16);
    for (gguf_name, name, shape) in [
        ("token_embd.weight", "embed_tokens.weight", vec![32, 40]),
        ("blk.1.attn_v.weight", "layers.1.self_attn.v_proj.weight", vec![32, 16]),
        ("blk.2.attn_k_norm.weight", "layers.2.self_attn.k_norm.weight", vec![16]),
        ("blk.2.ffn_gate_up_exps.weight", "layers.2.experts.gate_up_proj", vec![32, 64, 4]),
        ("blk.0.ffn_down_exps.scale", "layers.0.router.per_expert_scale", vec![4]),
        ("blk.0.ffn_gate_inp.scale", "layers.0.router.scale", vec![32]),
        ("blk.0.post_ffw_norm_2.weight", "layers.0.post_feedforward_layernorm_2.weight", vec![32]),
        ("blk.1.layer_output_scale.weight", "layers.1.layer_scalar", vec![1]),
    ] {
        assert_eq!(gguf.tensor(gguf_name).map(|t| t.shape()), Some(shape.as_slice()), "{gguf_name}");
        assert_eq!(values(&gguf, gguf_name), folder.tensors[&format!("model.{name}")].1, "{gguf_name}");
    }
    assert!(gguf.tensor("blk.2.attn_v.weight").is_none(), "full layers take keys for values");
    // A quarter of 8 pairs turns; the others are divided to a stand.
    assert_eq!(values(&gguf, "rope_freqs.weight"), [1.0, 1.0, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30]);
}

#[test]
fn gemma4_metadata_states_both_kinds_of_layers() {
    let (_dir, gguf, notes) = converted(&Folder::gemma4_moe(), FileType::BF16);
    let metadata = gguf.metadata();
    for (key, expected) in [
        ("gemma4.block_count", 3),
        ("gemma4.attention.key_length", 16),
        ("gemma4.attention.key_length_swa", 8),
        ("gemma4.rope.dimension_count", 16),
        ("gemma4.attention.sliding_window", 6),
        ("gemma4.expert_used_count", 2),
        ("gemma4.embedding_length_per_layer_input", 0),
        ("gemma4.vocab_size", 40),
        ("general.file_type", 32),
    ] {
        assert_eq!(metadata.u32(key).expect(key), expected, "{key}");
    }
    let array = |key: &str| metadata.array(key).expect("an array");
    assert_eq!(array("gemma4.attention.head_count_kv").to_u64s(), Some(vec![2, 2, 1]));
    assert_eq!(array("gemma4.attention.sliding_window_pattern").to_bools(), Some(vec![true, true, false]));
    assert_eq!(metadata.str("tokenizer.ggml.model").expect("a model"), "none");
    assert!(notes.iter().any(|n| n.contains("no tokenizer")), "{notes:?}");
}

#[test]
fn both_styles_of_configuration_make_the_same_file() {
    let plain = Folder::gemma4_moe();
    let mut layered = plain.clone();
    let fields = layered.config.as_object_mut().expect("an object");
    fields.remove("global_head_dim");
    fields.remove("num_global_key_value_heads");
    fields.insert("per_layer_config".into(), json!({"2": {"head_dim": 16, "num_key_value_heads": 1}}));
    let mut nested = plain.clone();
    nested.config = json!({"model_type": "gemma4", "text_config": plain.config});
    nested.tensors = plain
        .tensors
        .iter()
        .map(|(n, t)| (n.replace("model.", "model.language_model."), t.clone()))
        .collect();
    nested.tensors.insert("model.vision_tower.patch.weight".into(), (vec![2, 2], vec![0.0; 4]));
    let bytes = |folder: &Folder| {
        let (dir, _, notes) = converted(folder, FileType::F16);
        let mut bytes = std::fs::read(dir.path().join("out.gguf")).expect("read");
        // The model is named after its folder, which differs.
        let at = bytes.windows(12).position(|w| w == b"general.name").expect("a name");
        let len = dir.path().file_name().expect("a name").len();
        bytes[at + 12 + 12..at + 12 + 12 + len].fill(0);
        (bytes, notes)
    };
    let (expected, _) = bytes(&plain);
    assert!(bytes(&layered).0 == expected, "per_layer_config");
    let (found, notes) = bytes(&nested);
    assert!(found == expected, "text_config");
    assert!(notes.iter().any(|n| n.contains("vision_tower: 1 tensors")), "{notes:?}");
}

#[test]
fn gemma3_norms_gain_one_and_the_query_norm_the_attention_scale() {
    let folder = Folder::gemma3();
    let (_dir, gguf, _) = converted(&folder, FileType::F16);
    let stored = |name: &str| &folder.tensors[&format!("model.{name}")].1;
    let plus_one: Vec<f32> = stored("layers.3.self_attn.k_norm.weight").iter().map(|w| w + 1.0).collect();
    assert_eq!(values(&gguf, "blk.3.attn_k_norm.weight"), plus_one);
    // Heads of 8 elements and a scale of 2^(-1/2): the ratio is sqrt(8 / 2).
    let folded: Vec<f32> =
        stored("layers.3.self_attn.q_norm.weight").iter().map(|w| (w + 1.0) * 2.0).collect();
    assert_eq!(values(&gguf, "blk.3.attn_q_norm.weight"), folded);
    assert_eq!(gguf.tensor("blk.3.attn_q_norm.weight").expect("a norm").ty().expect("known"), GgmlType::F32);
    let metadata = gguf.metadata();
    assert_eq!(metadata.f32("gemma3.rope.scaling.factor").expect("a factor"), 8.0);
    let pattern = metadata.array("gemma3.attention.sliding_window_pattern").expect("an unusual pattern");
    assert_eq!(pattern.to_bools(), Some(vec![true, true, true, false, true, true]));
}

#[test]
fn shards_make_the_same_file_as_one() {
    let folder = Folder::gemma4_moe();
    let (_whole, expected, _) = converted(&folder, FileType::Q8_0);
    let dir = tempfile::tempdir().expect("a folder");
    folder.write_sharded(dir.path());
    let (_parts, found, _) = converted_dir(dir, FileType::Q8_0);
    for tensor in expected.tensors() {
        let other = found.tensor(tensor.name()).expect("the same tensors");
        assert_eq!(other.ty().expect("known"), tensor.ty().expect("known"));
        let same = *found.data(other).expect("data") == *expected.data(tensor).expect("data");
        assert!(same, "{}", tensor.name());
    }
}

#[test]
fn a_tokenizer_of_gemma4_becomes_a_vocabulary() {
    let folder = Folder::gemma4_moe();
    let dir = tempfile::tempdir().expect("a folder");
    folder.write(dir.path());
    let mut vocab = serde_json::Map::new();
    let texts = ["<pad>", "<eos>", "<bos>", "<unk>", "<unused0>", "<|channel>", "<0x41>", "a", "b", "ab"];
    texts.iter().enumerate().for_each(|(id, text)| _ = vocab.insert((*text).into(), json!(id)));
    let added = |id: usize| json!({"id": id, "content": texts[id], "special": true});
    let tokenizer = json!({
        "model": {"type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": [["a", "b"], [" ", "a"]]},
        "added_tokens": (0..6).map(added).collect::<Vec<_>>(),
    });
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).expect("written");
    let settings =
        json!({"bos_token": "<bos>", "eos_token": {"content": "<eos>"}, "chat_template": "{{ x }}"});
    std::fs::write(dir.path().join("tokenizer_config.json"), settings.to_string()).expect("written");
    std::fs::write(dir.path().join("generation_config.json"), r#"{"top_k": 64, "top_p": 0.95}"#)
        .expect("written");
    let (_dir, gguf, notes) = converted_dir(dir, FileType::F32);
    let metadata = gguf.metadata();
    let strings = |key: &str| -> Vec<String> {
        let strings = metadata.strings(key).expect("strings");
        strings.iter().map(|s| String::from_utf8_lossy(s).into_owned()).collect()
    };
    assert_eq!(metadata.str("tokenizer.ggml.model").expect("a model"), "gemma4");
    assert_eq!(strings("tokenizer.ggml.tokens"), texts);
    assert_eq!(strings("tokenizer.ggml.merges"), ["a b", "\u{120} a"]);
    let types = metadata.array("tokenizer.ggml.token_type").expect("types").to_u64s();
    assert_eq!(types, Some(vec![3, 3, 3, 3, 1, 4, 6, 1, 1, 1]));
    assert_eq!(metadata.u32("tokenizer.ggml.eos_token_id").expect("an id"), 1);
    assert_eq!(metadata.str("tokenizer.chat_template").expect("a template"), "{{ x }}");
    assert_eq!(metadata.u32("general.sampling.top_k").expect("a setting"), 64);
    // Embeddings without a token are cut.
    assert_eq!(gguf.tensor("token_embd.weight").expect("a table").shape(), [32, 10]);
    assert!(notes.iter().any(|n| n.contains("30 embeddings")), "{notes:?}");
}
