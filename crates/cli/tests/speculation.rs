//! Drafts in the commands: the same text, what is reported, wrong use.

// Not every helper of the shared module is used here.
#[allow(dead_code)]
#[path = "../../engine/tests/common/mod.rs"]
mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::{Family, model_bytes};
use serde_json::Value;

const PROMPT: &str = "the cat the hat the cat the hat the cat the hat the cat the";

/// A directory with `model.gguf` and another model of the same vocabulary, `small.gguf`, in it.
fn models(family: Family) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.gguf"), model_bytes(family, 5)).unwrap();
    std::fs::write(dir.path().join("small.gguf"), model_bytes(Family::Gemma3, 6)).unwrap();
    dir
}

fn run(dir: &Path, args: &[&str]) -> Output {
    let base = ["generate", "-m", "model.gguf", "-p", PROMPT, "--ignore-eos", "--json"];
    Command::new(env!("CARGO_BIN_EXE_lapidary"))
        .current_dir(dir)
        .args(base.iter().chain(args))
        .output()
        .expect("the binary runs")
}

fn json(dir: &Path, args: &[&str]) -> Value {
    let output = run(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const SAMPLERS: [&[&str]; 4] = [
    &["--temp", "0"],
    &["--temp", "0.7", "--seed", "3"],
    &["--temp", "1.5", "--seed", "4", "--top-k", "0", "--top-p", "1", "--min-p", "0"],
    &["--temp", "0.9", "--seed", "5", "--repeat-penalty", "1.2", "--logprobs", "2"],
];

#[test]
fn drafts_change_nothing_but_the_passes() {
    for family in [Family::Gemma3, Family::PerLayer] {
        let dir = models(family);
        for sampler in SAMPLERS {
            let with = |extra: &[&str]| json(dir.path(), &[&["-n", "30"], sampler, extra].concat());
            let plain = with(&[]);
            assert!(plain.get("speculation").is_none());
            for draft in [
                &["--draft", "lookup"][..],
                &["--draft", "lookup", "--draft-adapt", "off", "--draft-max", "5"],
                &["--draft", "model=small.gguf", "--draft-adapt", "off", "--kv", "f16"],
                &["--draft", "model=model.gguf"],
            ] {
                let plain = if draft.contains(&"f16") { with(&["--kv", "f16"]) } else { plain.clone() };
                let drafted = with(draft);
                for field in ["ids", "text", "finish_reason", "logprobs"] {
                    assert_eq!(
                        drafted.get(field),
                        plain.get(field),
                        "{family:?} {sampler:?} {draft:?} {field}"
                    );
                }
                let spec = &drafted["speculation"];
                assert_eq!(spec["tokens"], 29);
                let (passes, accepted) =
                    (spec["passes"].as_u64().unwrap(), spec["accepted"].as_u64().unwrap());
                assert_eq!(passes + accepted, 29, "{spec}");
            }
        }
    }
}

#[test]
fn a_model_drafts_perfectly_for_itself() {
    let dir = models(Family::DenseFused);
    let args = [
        "-n",
        "61",
        "--temp",
        "0",
        "--draft",
        "model=model.gguf",
        "--draft-adapt",
        "off",
        "--draft-max",
        "8",
    ];
    let spec = json(dir.path(), &args)["speculation"].clone();
    // Every guess of the chain holds; the eight nodes of a draft are four steps with their runners-up.
    assert!(spec["tokens_per_pass"].as_f64().unwrap() > 4.0, "{spec}");
    assert!(spec["acceptance_by_depth"].as_array().unwrap().iter().all(|a| a == 1.0), "{spec}");
}

#[test]
fn the_end_of_the_context_and_of_the_text_are_those_without() {
    let dir = models(Family::Gemma3);
    let prompt = json(dir.path(), &["-n", "0"])["prompt_ids"].as_array().unwrap().len();
    let context = (prompt + 20).to_string();
    let ends: [&[&str]; 3] = [&["-n", "100", "-c", &context], &["-n", "1"], &["-n", "50", "--stop", "e"]];
    for end in ends {
        let plain = json(dir.path(), &[end, &["--temp", "0"]].concat());
        let draft = ["--temp", "0", "--draft", "lookup", "--draft-adapt", "off"];
        let drafted = json(dir.path(), &[end, &draft].concat());
        for field in ["ids", "text", "finish_reason"] {
            assert_eq!(drafted[field], plain[field], "{end:?}");
        }
    }
}

#[test]
fn stderr_says_what_it_did() {
    let dir = models(Family::Gemma3);
    let output = Command::new(env!("CARGO_BIN_EXE_lapidary"))
        .current_dir(dir.path())
        .args(["generate", "-m", "model.gguf", "-p", PROMPT, "-n", "9", "--draft", "lookup"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("draft lookup: "));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("draft"));
}

#[test]
fn what_cannot_draft_is_refused() {
    let dir = models(Family::Gemma3);
    let fails = |draft: &str, status: i32, says: &str| {
        let output = run(dir.path(), &["-n", "4", "--draft", draft]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{draft}: {stderr}");
        assert!(stderr.contains(says), "{draft}: {stderr}");
    };
    fails("magic", 2, "lookup");
    fails("model=", 2, "model=FILE");
    fails("model=missing.gguf", 1, "missing.gguf");
    // One token is another one.
    let mut other = model_bytes(Family::Gemma3, 5);
    let at = other.windows(9).position(|w| w == b"<unused31").unwrap();
    other[at + 1] = b'x';
    std::fs::write(dir.path().join("other.gguf"), other).unwrap();
    fails("model=other.gguf", 1, "not those of the model");
}
