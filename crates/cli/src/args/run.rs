//! Flags of every command that runs a model.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lapidary_backend::KvFormat;
use lapidary_engine::Config;
use lapidary_engine::model::CacheGroup;

use crate::memory::{KvMemory, size};

/// Which model, on what.
#[derive(Args, Clone)]
pub struct ModelArgs {
    /// Model file (GGUF; of a split model the first part) [default: the small demo model in this binary]
    #[arg(short, long, value_name = "FILE", env = "LAPIDARY_MODEL")]
    pub model: Option<PathBuf>,
}

/// How the model is run.
#[derive(Args, Clone)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Where to run: auto (a GPU that works, else the CPU), cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", env = "LAPIDARY_DEVICE")]
    pub device: String,
    /// Threads [default: all cores]
    #[arg(short, long, env = "LAPIDARY_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Precision of activations in products with quantised weights: q8 rounds them to 8-bit blocks and is
    /// fastest; f32 does not round
    #[arg(long, default_value = "q8")]
    pub activations: ActivationsArg,
    /// How the output matrix is used: native as stored; screened also keeps a coarse copy, about 5 bits a weight, that
    /// finds the largest logits, the same to the bit, with fewer bytes; auto makes that copy after 32 tokens where it
    /// pays; f16 and q8_0 re-quantise a float one at load
    #[arg(long, default_value = "auto", value_name = "FORMAT")]
    pub head: HeadArg,
    /// Look again, exactly, at the logits of a re-quantised head that could win
    #[arg(long, default_value = "on", value_name = "on|off")]
    pub rerank: Switch,
    #[command(flatten)]
    pub kv: KvArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HeadArg {
    Auto,
    Native,
    Screened,
    F16,
    #[value(name = "q8_0")]
    Q8_0,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ActivationsArg {
    Q8,
    F32,
}

/// Formats of the key/value cache.
#[derive(Args, Clone)]
pub struct KvArgs {
    /// Format of cached keys and values: f32, f16, or compressed tq8, tq6, tq5, tq4 [default: tq8 on a CPU; f16 on a
    /// GPU, and for a model whose heads tq8 cannot hold]
    #[arg(long, value_name = "FORMAT")]
    kv: Option<KvFormat>,
    /// Format of keys alone [default: that of --kv]
    #[arg(long, value_name = "FORMAT")]
    kv_k: Option<KvFormat>,
    /// Format of values alone [default: that of --kv]
    #[arg(long, value_name = "FORMAT")]
    kv_v: Option<KvFormat>,
    /// Memory that cached keys and values may take: a size such as 512M or 2G, or auto for what is free
    #[arg(long, default_value = "auto", value_name = "SIZE")]
    pub kv_memory: KvMemory,
}

/// Keeping keys and values on disk.
#[derive(Args, Clone)]
pub struct KvStoreArgs {
    /// Folder that keeps keys and values, so that a later run with the same beginning starts where this one was
    #[arg(long, value_name = "DIR")]
    pub kv_store: Option<PathBuf>,
    /// What the folder may hold; the least recently used goes first
    #[arg(long, default_value = "8G", value_name = "SIZE", value_parser = size)]
    pub kv_store_size: u64,
}

impl KvArgs {
    /// Formats of keys and values for a model; `preferred` is taken where none is named and the model's heads allow it.
    pub fn formats(&self, config: &Config, preferred: KvFormat) -> (KvFormat, KvFormat) {
        let holds = |g: &CacheGroup| preferred.supports(g.head_dim);
        let default = if config.cache_groups.iter().all(holds) { preferred } else { KvFormat::F16 };
        let both = self.kv.unwrap_or(default);
        (self.kv_k.unwrap_or(both), self.kv_v.unwrap_or(both))
    }
}

/// The text to work on.
#[derive(Args, Clone)]
#[group(required = true, multiple = false)]
pub struct TextArgs {
    /// The text
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// A file that holds the text; - for standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}
