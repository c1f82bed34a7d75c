//! The commands on a small random model: what they print, and that they agree with each other.

// Not every helper of the shared module is used here.
#[allow(dead_code)]
#[path = "../../engine/tests/common/mod.rs"]
mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::{Family, model_bytes};
use serde_json::Value;

/// A directory with `model.gguf` in it.
fn model(family: Family) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.gguf"), model_bytes(family, 5)).unwrap();
    dir
}

fn run(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lapidary"))
        .current_dir(dir)
        .args(args)
        .output()
        .expect("the binary runs")
}

fn success(dir: &Path, args: &[&str]) -> String {
    let output = run(dir, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(dir: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&success(dir, args)).unwrap()
}

#[test]
fn generate_is_reproducible_and_its_prompt_is_tokenize() {
    for family in [Family::Gemma3, Family::Experts { merged: true }, Family::PerLayer] {
        let dir = model(family);
        let generate = |extra: &[&str]| {
            let base =
                ["generate", "-m", "model.gguf", "-p", "the cat", "-n", "12", "--ignore-eos", "--json"];
            json(dir.path(), &[&base, extra].concat())
        };
        let greedy = generate(&["--temp", "0"]);
        assert_eq!(greedy["ids"].as_array().unwrap().len(), 12);
        assert_eq!(greedy["finish_reason"], "length");
        assert_eq!(greedy["ids"], generate(&["--temp", "0", "-t", "1"])["ids"]);
        let seeded =
            generate(&["--temp", "2", "--seed", "3", "--top-k", "0", "--top-p", "1", "--min-p", "0"]);
        let again = generate(&["--temp", "2", "--seed", "3", "--top-k", "0", "--top-p", "1", "--min-p", "0"]);
        assert_eq!(seeded["ids"], again["ids"]);
        assert_ne!(seeded["ids"], greedy["ids"]);
        let tokens = json(dir.path(), &["tokenize", "-m", "model.gguf", "-p", "the cat", "--json"]);
        assert_eq!(tokens["ids"], greedy["prompt_ids"]);
        assert_eq!(tokens["ids"][0], 2);
    }
}

#[test]
fn logprobs_come_best_first_and_the_best_is_the_greedy_choice() {
    let dir = model(Family::Gemma3);
    let args =
        ["generate", "-m", "model.gguf", "-p", "a", "-n", "5", "--temp", "0", "--logprobs", "3", "--json"];
    let report = json(dir.path(), &args);
    let steps = report["logprobs"].as_array().unwrap();
    assert_eq!(steps.len(), report["ids"].as_array().unwrap().len());
    for (step, id) in steps.iter().zip(report["ids"].as_array().unwrap()) {
        assert_eq!(step[0]["id"], *id);
        let values: Vec<f64> =
            step.as_array().unwrap().iter().map(|l| l["logprob"].as_f64().unwrap()).collect();
        assert!(values.len() == 3 && values.windows(2).all(|w| w[0] >= w[1]) && values[0] < 0.0);
    }
}

#[test]
fn text_goes_to_stdout_and_timings_to_stderr() {
    let dir = model(Family::Gemma3);
    let output =
        run(dir.path(), &["generate", "-m", "model.gguf", "-p", "the cat", "-n", "3", "--temp", "0"]);
    assert!(output.stdout.starts_with(b"the cat"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("generated 3 tokens"));
}

#[test]
fn zero_tokens_and_a_full_context_end_cleanly() {
    let dir = model(Family::Gemma3);
    let base = ["generate", "-m", "model.gguf", "-p", "the cat", "--temp", "0", "--ignore-eos", "--json"];
    let report = json(dir.path(), &[&base[..], &["-n", "0"]].concat());
    assert_eq!(report["ids"].as_array().unwrap().len(), 0);
    // The prompt fills 6 positions; the logits after the last one still give a token.
    let prompt = report["prompt_ids"].as_array().unwrap().len();
    let context = (prompt + 2).to_string();
    let report = json(dir.path(), &[&base[..], &["-n", "100", "-c", &context]].concat());
    assert_eq!(report["ids"].as_array().unwrap().len(), 3);
    assert_eq!(report["finish_reason"], "length");
    let output = run(dir.path(), &[&base[..], &["-c", "2"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("raise -c"));
}

#[test]
fn stop_strings_end_the_text_and_are_not_shown() {
    let dir = model(Family::Gemma3);
    let args =
        ["generate", "-m", "model.gguf", "-p", "the", "-n", "30", "--seed", "1", "--ignore-eos", "--json"];
    let plain = json(dir.path(), &args);
    let text = plain["text"].as_str().unwrap();
    // Any later character of the text serves as a stop string.
    let (at, stop) = text.char_indices().nth(4).unwrap();
    let stop = stop.to_string();
    let first = text.find(&stop).unwrap();
    assert!(first <= at);
    let stopped = json(dir.path(), &[&args[..], &["--stop", &stop]].concat());
    assert_eq!(stopped["text"].as_str().unwrap(), &text[..first]);
    assert_eq!(stopped["finish_reason"], "stop");
}

#[test]
fn trace_perplexity_and_generate_tell_the_same_story() {
    let dir = model(Family::Experts { merged: true });
    let text = "the cat sat on the mat and then the cat ate the hat of the man ".repeat(4);
    std::fs::write(dir.path().join("text.txt"), &text).unwrap();
    let ids = json(dir.path(), &["tokenize", "-m", "model.gguf", "-f", "text.txt", "--json"])["ids"].clone();
    let ids: Vec<usize> =
        ids.as_array().unwrap().iter().take(64).map(|v| v.as_u64().unwrap() as usize).collect();
    let list = ids.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let points = "logits,hidden,router";
    success(dir.path(), &["trace", "-m", "model.gguf", "--ids", &list, "--out", "t.st", "--points", points]);
    let bytes = std::fs::read(dir.path().join("t.st")).unwrap();
    let traced = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let logits = traced.tensor("logits").unwrap();
    assert_eq!(logits.shape(), [64, common::VOCAB]);
    assert_eq!(traced.tensor("hidden.6").unwrap().shape(), [64, 256]);
    assert_eq!(traced.tensor("final_norm").unwrap().shape(), [64, 256]);
    assert_eq!(traced.tensor("router.3.ids").unwrap().shape(), [64, 2]);

    let args =
        ["perplexity", "-m", "model.gguf", "-f", "text.txt", "-c", "64", "--method", "window", "--json"];
    let report = json(dir.path(), &args);
    let nll = report["nll"].as_array().unwrap();
    assert_eq!(nll.len(), 63);
    let logits: Vec<f64> =
        logits.data().chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect();
    for (i, found) in nll.iter().enumerate() {
        let row = &logits[i * common::VOCAB..][..common::VOCAB];
        let expected = row.iter().map(|l| l.exp()).sum::<f64>().ln() - row[ids[i + 1]];
        assert!((found.as_f64().unwrap() - expected).abs() < 1e-4, "token {i}: {found} for {expected}");
    }
}

#[test]
fn a_second_look_makes_up_for_a_coarse_head() {
    let dir = model(Family::Gemma3);
    std::fs::write(dir.path().join("text.txt"), "the cat sat on the mat ".repeat(40)).unwrap();
    let args = ["perplexity", "-m", "model.gguf", "-f", "text.txt", "-c", "512", "--compare-heads", "--json"];
    let report = json(dir.path(), &[&args[..], &["--head", "q8_0"]].concat());
    assert_eq!(report["tokens"], 512);
    assert_eq!(report["reranked_differs"], 0);
    let report = json(dir.path(), &[&args[..], &["--head", "f16"]].concat());
    assert_eq!(report["coarse_differs"], 0, "the head is stored as f16");
    let output = run(dir.path(), &args);
    assert_eq!(output.status.code(), Some(1));
    let quantised = model(Family::PerLayer);
    let output = run(quantised.path(), &["generate", "-m", "model.gguf", "-p", "a", "--head", "f16"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("stored as Q8_0"));
}

#[test]
fn chunked_perplexity_counts_the_second_half_of_each_chunk() {
    let dir = model(Family::Gemma3);
    std::fs::write(dir.path().join("text.txt"), "the cat sat on the mat ".repeat(20)).unwrap();
    let args = ["perplexity", "-m", "model.gguf", "-f", "text.txt", "-c", "32", "--json"];
    let report = json(dir.path(), &args);
    assert_eq!(report["tokens"].as_u64().unwrap() % 15, 0);
    let output = run(dir.path(), &["perplexity", "-m", "model.gguf", "-f", "text.txt", "-c", "1024"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("lower -c"));
}

#[test]
fn info_lists_what_is_there() {
    let dir = model(Family::PerLayer);
    let report = json(dir.path(), &["info", "model.gguf", "--tensors", "--json"]);
    assert_eq!(report["architecture"], "gemma4");
    assert_eq!(report["layers"], 6);
    assert_eq!(report["context_length"], 1024);
    let tensors = report["tensors"].as_array().unwrap();
    let parameters: u64 = tensors
        .iter()
        .map(|t| t["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product::<u64>())
        .sum();
    assert_eq!(report["parameters"].as_u64(), Some(parameters));
    assert!(success(dir.path(), &["info", "model.gguf"]).contains("Q4_K"));
}

#[test]
fn bench_reports_every_test() {
    let dir = model(Family::Experts { merged: false });
    let args =
        ["bench", "-m", "model.gguf", "--prompt", "16", "--gen", "4", "--depth", "0,40", "--batch", "1,3"];
    let report = json(dir.path(), &[&args[..], &["--repeat", "2", "--json"]].concat());
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let speed = &row["tokens_per_s"];
        assert!(speed["min"].as_f64() <= speed["median"].as_f64());
        assert!(speed["median"].as_f64() <= speed["max"].as_f64());
        assert!(row["bytes_per_token"].as_u64() > Some(0));
    }
}

#[test]
fn an_id_out_of_range_is_named() {
    let dir = model(Family::Gemma3);
    let output = run(dir.path(), &["trace", "-m", "model.gguf", "--ids", "2,320", "--out", "t.st"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("320") && stderr.contains("vocabulary"), "{stderr}");
    assert!(!dir.path().join("t.st").exists());
}
