//! The work that `bench` and `profile` measure: prompts and generation on random tokens, at any depth of the cache.

use std::sync::Arc;

use anyhow::Result;
use lapidary_engine::model::Traffic;
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
    workspace: Workspace<B>,
    /// State of a small generator of token ids; what the ids are does not matter, only that they differ.
    ids: u64,
}

/// Sequences that lie at a depth, from which runs go on.
pub struct Bases<B: Device> {
    cache: KvCache<B>,
    sequences: Vec<SequenceId>,
}

impl<'a, B: Device> Workload<'a, B> {
    /// A workload on `loaded` with the cache formats of the flags.
    pub fn new(run: &'a RunArgs, loaded: &'a Loaded<B>) -> Self {
        let (k_format, v_format) = run.kv.formats(loaded.model.config(), B::PREFERRED_KV);
        let traffic = Traffic::new(&loaded.gguf, loaded.model.config(), k_format, v_format);
        Self { run, loaded, traffic, workspace: Workspace::new(), ids: 1 }
    }

    /// Makes the coarse copy of the output matrix, if the flags allow one, so that no run has to.
    fn prepare_screen(&mut self) -> Result<()> {
        self.loaded.model.prepare_screen()?;
        let copy = self.loaded.model.screen_stats().bytes;
        if copy > 0 {
            self.traffic = self.traffic.clone().with_head(copy as u64);
        }
        Ok(())
    }

    /// `batch` sequences of `depth` random tokens in a cache with room for `test`.
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
        let sequences: Vec<SequenceId> = (0..batch).map(|_| cache.create()).collect();
        for &sequence in &sequences {
            self.feed(&mut cache, sequence, depth)?;
        }
        Ok(Bases { cache, sequences })
    }

    /// Runs `test` once on forks of the bases; returns the tokens that went through.
    pub fn once(&mut self, test: Test, bases: &mut Bases<B>) -> Result<usize> {
        let cache = &mut bases.cache;
        let sequences: Vec<SequenceId> = bases.sequences.iter().map(|&base| cache.fork(base)).collect();
        let tokens = match test {
            Test::Prompt(n) => {
                self.feed(cache, sequences[0], n)?;
                n
            }
            Test::Generate(n) => {
                for _ in 0..n {
                    let mut rows = Batch::new();
                    sequences.iter().for_each(|&s| rows.push(s, self.token(), Want::Best(1)));
                    self.loaded.model.forward(&rows, cache, &mut self.workspace, &mut NoProbe)?;
                }
                n * sequences.len()
            }
        };
        sequences.into_iter().for_each(|id| cache.release(id));
        Ok(tokens)
    }

    /// Bytes that a token of the test makes the machine read.
    pub fn bytes_per_token(&self, test: Test, depth: usize, batch: usize) -> u64 {
        match test {
            Test::Prompt(n) => self.traffic.prompt_bytes_per_token(n.min(DEFAULT_BATCH)),
            Test::Generate(n) => self.traffic.decode_bytes_per_token(batch, depth + n / 2),
        }
    }

    fn feed(&mut self, cache: &mut KvCache<B>, sequence: SequenceId, n: usize) -> Result<()> {
        let tokens: Vec<u32> = (0..n).map(|_| self.token()).collect();
        for chunk in tokens.chunks(DEFAULT_BATCH) {
            let mut rows = Batch::new();
            rows.extend(sequence, chunk, Want::Logits);
            self.loaded.model.forward(&rows, cache, &mut self.workspace, &mut NoProbe)?;
        }
        Ok(())
    }

    fn token(&mut self) -> u32 {
        self.ids = self.ids.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.ids >> 33) as u32 % self.loaded.model.config().vocab as u32
    }
}
