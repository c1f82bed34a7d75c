//! What a user sees when something is wrong: one clear message on stderr, nothing on stdout, the right status.

use std::path::PathBuf;
use std::process::{Command, Output};

fn lapidary(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lapidary"))
        .args(args)
        .env_remove("LAPIDARY_MODEL")
        .output()
        .expect("the binary runs")
}

/// A file of these bytes, removed with the directory at the end of the test.
fn file(dir: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn assert_fails(args: &[&str], status: i32, says: &[&str]) {
    let output = lapidary(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?} wrote to stdout");
    for words in says {
        assert!(stderr.contains(words), "{args:?} does not say '{words}': {stderr}");
    }
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    assert!(stderr.lines().count() <= 6, "{args:?} says too much: {stderr}");
}

/// A GGUF header with one metadata pair, `general.architecture`.
fn header(architecture: &str) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    for text in ["general.architecture", architecture] {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
        if text != architecture {
            bytes.extend(8u32.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn a_missing_file() {
    assert_fails(&["info", "/no/such/model.gguf"], 1, &["/no/such/model.gguf", "No such file"]);
    assert_fails(&["generate", "-m", "/no/such/model.gguf", "-p", "x"], 1, &["/no/such/model.gguf"]);
}

#[test]
fn a_directory() {
    let dir = tempfile::tempdir().unwrap();
    assert_fails(&["info", dir.path().to_str().unwrap()], 1, &["directory"]);
}

#[test]
fn a_text_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "story.gguf", b"Once upon a time\n");
    assert_fails(
        &["generate", "-m", path.to_str().unwrap(), "-p", "x"],
        1,
        &["not a GGUF file", "Once upon"],
    );
}

#[test]
fn an_empty_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "empty.gguf", b"");
    assert_fails(&["info", path.to_str().unwrap()], 1, &["not a GGUF file", "empty"]);
}

#[test]
fn a_truncated_file() {
    let dir = tempfile::tempdir().unwrap();
    let whole = header("gemma3");
    for cut in [4, 9, 20, whole.len() - 1] {
        let path = file(&dir, "cut.gguf", &whole[..cut]);
        assert_fails(&["info", path.to_str().unwrap()], 1, &["cut.gguf"]);
    }
    let path = file(&dir, "cut.gguf", &whole[..whole.len() - 1]);
    assert_fails(&["info", path.to_str().unwrap()], 1, &["truncated", "1 more byte"]);
}

#[test]
fn an_unsupported_architecture() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "llama.gguf", &header("llama"));
    assert_fails(&["generate", "-m", path.to_str().unwrap(), "-p", "x"], 1, &["'llama'", "gemma3"]);
}

#[test]
fn wrong_usage_has_status_2() {
    for args in [
        &["generate", "-m", "x.gguf", "-p", "x", "-n", "-1"][..],
        &["generate", "-m", "x.gguf"],
        &["generate", "-m", "x.gguf", "-p", "x", "--temp", "-1"],
        &["generate", "-m", "x.gguf", "-p", "x", "--top-p", "2"],
        &["generate", "-m", "x.gguf", "-p", "x", "--kv", "f8"],
        &["generate", "-m", "x.gguf", "-p", "x", "-t", "0"],
        &["trace", "-m", "x.gguf", "--ids", "1,x", "--out", "o"],
        &["frobnicate"],
    ] {
        let output = lapidary(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?} wrote to stdout");
    }
}

#[test]
fn completions_name_the_subcommands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = lapidary(&["completions", shell]);
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains("perplexity"), "{shell}");
    }
}

#[test]
fn outputs_never_replace_devices_or_inputs() {
    let dir = tempfile::tempdir().unwrap();
    let model = file(&dir, "model.gguf", &header("gemma3"));
    let model = model.to_str().unwrap();
    let trace = ["trace", "-m", model, "--ids", "2", "--out"];
    assert_fails(&[&trace[..], &[model]].concat(), 1, &["is the model itself"]);
    assert_fails(&[&trace[..], &["/dev/null"]].concat(), 1, &["no regular file"]);
    let config = file(&dir, "config.json", b"{}");
    let folder = dir.path().to_str().unwrap();
    assert_fails(&["convert", folder, "-o", config.to_str().unwrap()], 1, &["name another output"]);
    assert_eq!(std::fs::read(&config).unwrap(), b"{}");
}
