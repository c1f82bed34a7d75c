//! The work that `bench` and `profile` measure: prompts and generation, at any depth of the cache.
//!
//! Tokens are those of English text, Lapidary's own manual, each sequence from a place of its own on. What the tokens are
//! matters: text chooses experts and leads to logits as use does, random ids do neither. Models without a tokenizer get
//! random ids.

use std::sync::Arc;

use anyhow::Result;
use lapidary_engine::model::{MOST_SCREENED_ROWS, Traffic};
use lapidary_engine::tokenizer::{EncodeOptions, Tokenizer};
use lapidary_engine::{Batch, DEFAULT_BATCH, KvCache, KvCacheConfig, NoProbe, SequenceId, Want, Workspace};

use crate::args::RunArgs;
use crate::device::Device;
use crate::load::{self, Loaded};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// So many tokens of one sequence, as a prompt.
    Prompt(usize),
    /// So many steps, each with one token of every sequence.
    Generate(usize),
}

impl Test {
    /// The name that llama-bench uses.
    pub fn name(self) -> String {
        match self {
            Self::Prompt(n) => format!("pp{n}"),
            Self::Generate(n) => format!("tg{n}"),
        }
    }

    fn tokens(self) -> usize {
        match self {
            Self::Prompt(n) | Self::Generate(n) => n,
        }
    }
}

/// A model at work.
pub struct Workload<'a, B: Device> {
    run: &'a RunArgs,
    loaded: &'a Loaded<B>,
    traffic: Traffic,
    /// The same with a coarse copy in place of the output matrix, once that was made.
    screened: Option<Traffic>,
    workspace: Workspace<B>,
    /// Tokens of the manual; empty when the model has no tokenizer.
    text: Vec<u32>,
}

/// The manual.
const TEXT: [&str; 3] = [
    include_str!("../../../docs/architecture.md"),
    include_str!("../../../docs/kv-cache.md"),
    include_str!("../../../docs/kv-quality.md"),
];

/// Sequences that lie at a depth, from which runs go on.
pub struct Bases<B: Device> {
    cache: KvCache<B>,
    /// Sequences and where their text goes on.
    sequences: Vec<(SequenceId, usize)>,
}

impl<'a, B: Device> Workload<'a, B> {
    /// A workload on `loaded` with the cache formats of the flags.
    pub fn new(run: &'a RunArgs, loaded: &'a Loaded<B>) -> Self {
        let (k_format, v_format) = run.kv.formats(loaded.model.config(), B::PREFERRED_KV);
        let traffic = Traffic::new(&loaded.gguf, loaded.model.config(), k_format, v_format);
        let encode = |tokenizer: &Tokenizer| {
            let options = EncodeOptions { add_bos: false, parse_special: false };
            TEXT.iter().flat_map(|text| tokenizer.encode(text, options)).collect()
        };
        let text = loaded.tokenizer.as_ref().map(encode).unwrap_or_default();
        Self { run, loaded, traffic, screened: None, workspace: Workspace::new(), text }
    }

    /// Makes the coarse copy of the output matrix, if the flags allow one, so that no run has to.
    fn prepare_screen(&mut self) -> Result<()> {
        self.loaded.model.prepare_screen()?;
        let copy = self.loaded.model.screen_stats().bytes;
        self.screened = (copy > 0).then(|| self.traffic.clone().with_head(copy as u64));
        Ok(())
    }

    /// `batch` sequences of `depth` tokens in a cache with room for `test`.
    pub fn bases(&mut self, test: Test, depth: usize, batch: usize) -> Result<Bases<B>> {
        if matches!(test, Test::Generate(_)) {
            self.prepare_screen()?;
        }
        let kv = &self.run.kv;
        let (k_format, v_format) = kv.formats(self.loaded.model.config(), B::PREFERRED_KV);
        let budget = load::kv_budget(self.loaded, kv.kv_memory);
        let config = KvCacheConfig { k_format, v_format, context: depth + test.tokens(), budget };
        let model = &self.loaded.model;
        let mut cache = KvCache::new(Arc::clone(model.backend()), model.config(), config)?;
        let mut sequences = Vec::with_capacity(batch);
        for i in 0..batch {
            let (sequence, start) = (cache.create(), random(i));
            self.feed(&mut cache, (sequence, start), depth)?;
            sequences.push((sequence, start.wrapping_add(depth)));
        }
        Ok(Bases { cache, sequences })
    }

    /// Runs `test` once on forks of the bases; returns the tokens that went through.
    pub fn once(&mut self, test: Test, bases: &mut Bases<B>) -> Result<usize> {
        let cache = &mut bases.cache;
        let forks: Vec<_> = bases.sequences.iter().map(|&(base, at)| (cache.fork(base), at)).collect();
        let tokens = match test {
            Test::Prompt(n) => {
                self.feed(cache, forks[0], n)?;
                n
            }
            Test::Generate(n) => {
                for step in 0..n {
                    let mut rows = Batch::new();
                    forks
                        .iter()
                        .for_each(|&(s, at)| rows.push(s, self.token(at.wrapping_add(step)), Want::Best(1)));
                    self.loaded.model.forward(&rows, cache, &mut self.workspace, &mut NoProbe)?;
                }
                n * forks.len()
            }
        };
        forks.into_iter().for_each(|(id, _)| cache.release(id));
        Ok(tokens)
    }

    /// Bytes that a token of the test makes the machine read.
    pub fn bytes_per_token(&self, test: Test, depth: usize, batch: usize) -> u64 {
        match test {
            Test::Prompt(n) => self.traffic.prompt_bytes_per_token(n.min(DEFAULT_BATCH)),
            Test::Generate(n) => self.generation_traffic(batch).decode_bytes_per_token(batch, depth + n / 2),
        }
    }

    /// What a step of `batch` sequences reads: many rows share the whole output matrix.
    fn generation_traffic(&self, batch: usize) -> &Traffic {
        self.screened.as_ref().filter(|_| batch <= MOST_SCREENED_ROWS).unwrap_or(&self.traffic)
    }

    fn feed(&mut self, cache: &mut KvCache<B>, (sequence, at): (SequenceId, usize), n: usize) -> Result<()> {
        let tokens: Vec<u32> = (0..n).map(|i| self.token(at.wrapping_add(i))).collect();
        for chunk in tokens.chunks(DEFAULT_BATCH) {
            let mut rows = Batch::new();
            rows.extend(sequence, chunk, Want::Logits);
            self.loaded.model.forward(&rows, cache, &mut self.workspace, &mut NoProbe)?;
        }
        Ok(())
    }

    /// The token at a place of the text, which begins anew at its end.
    fn token(&self, at: usize) -> u32 {
        match self.text.len() {
            0 => (random(at) % self.loaded.model.config().vocab) as u32,
            len => self.text[at % len],
        }
    }
}

/// A number that looks random, the same for the same `n`.
fn random(n: usize) -> usize {
    let n = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (n >> 33) as usize
}
