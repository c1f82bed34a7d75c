//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use lapidary_backend::KvFormat;
use lapidary_convert::{FileType, SyntheticKind};
use lapidary_engine::SamplerConfig;
use lapidary_engine::quality::KvFormats;

use crate::memory::{KvMemory, size};
use lapidary_engine::Config;
use lapidary_engine::model::CacheGroup;

/// Runs Google's Gemma models from GGUF files.
///
/// Results go to stdout, everything else to stderr; --json gives one JSON object. Flags that name a model, a device
/// or threads can also be set by environment variables (shown beside them).
#[derive(Parser)]
#[command(version, max_term_width = 100, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Continue a text
    Generate(Box<GenerateArgs>),
    /// Show the tokens of a text
    Tokenize(TokenizeArgs),
    /// Describe a GGUF file
    Info(InfoArgs),
    /// Measure how well a model predicts a text
    Perplexity(PerplexityArgs),
    /// Measure what a compressed key/value cache costs in quality; best with --activations f32
    Gate(Box<GateArgs>),
    /// Write logits, hidden states and expert choices to a safetensors file
    Trace(TraceArgs),
    /// Measure speed, and the share of the machine's limit that it reaches
    Bench(BenchArgs),
    /// Show where the time of a prompt and of a generated token goes, operation by operation
    Profile(ProfileArgs),
    /// Make a GGUF file of a Hugging Face folder
    Convert(ConvertArgs),
    /// Write a GGUF file in another type
    Quantize(QuantizeArgs),
    /// Write a model of random weights in the shape of a released one
    Synth(SynthArgs),
    /// Check this machine, and a model file
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

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

#[derive(Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub text: TextArgs,
    /// Tokens to generate at most
    #[arg(
        short = 'n',
        long = "n-predict",
        default_value_t = 256,
        value_name = "N",
        allow_hyphen_values = true
    )]
    pub n_predict: u32,
    /// Positions of the context [default: as needed, up to the model's]
    #[arg(short = 'c', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ctx_size: Option<u32>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub store: KvStoreArgs,
    #[command(flatten)]
    pub draft: DraftArgs,
    /// Stop when this text appears; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Go on behind the model's end-of-text token
    #[arg(long)]
    pub ignore_eos: bool,
    /// Treat control tokens such as <start_of_turn> in the text as plain text
    #[arg(long)]
    pub no_special: bool,
    /// Do not begin with the beginning-of-text token
    #[arg(long)]
    pub no_bos: bool,
    /// Report the log-probabilities of the K best tokens at each step (with --json)
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub logprobs: u32,
    /// Print one JSON object instead of the text
    #[arg(long)]
    pub json: bool,
}

/// Speculative decoding: several tokens from one pass, never another token.
#[derive(Args, Clone)]
pub struct DraftArgs {
    /// Guess tokens ahead and check them together: lookup (what followed earlier in the text) or model=FILE (a smaller model
    /// with the same tokenizer). The text stays the same to the token
    #[arg(long, default_value = "off", value_name = "SPEC")]
    pub draft: DraftSource,
    /// Guessed tokens that are checked together at most
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub draft_max: u32,
    /// Check only guesses that promise to save time; off checks all there are
    #[arg(long, default_value = "on", value_name = "on|off")]
    pub draft_adapt: Switch,
}

/// Where guesses come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftSource {
    Off,
    Lookup,
    Model(PathBuf),
}

impl std::str::FromStr for DraftSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "off" => Ok(Self::Off),
            None if text == "lookup" => Ok(Self::Lookup),
            Some(("model", file)) if !file.is_empty() => Ok(Self::Model(file.into())),
            _ => Err("expected off, lookup or model=FILE".into()),
        }
    }
}

/// How the next token is chosen.
#[derive(Args, Clone)]
pub struct SamplingArgs {
    /// Temperature; 0 takes the most probable token
    #[arg(long, default_value_t = 0.8, value_parser = non_negative)]
    temp: f32,
    /// Keep the K most probable tokens; 0 keeps all
    #[arg(long, default_value_t = 40, value_name = "K")]
    top_k: u32,
    /// Keep the most probable tokens up to this total probability
    #[arg(long, default_value_t = 0.95, value_name = "P", value_parser = fraction)]
    top_p: f32,
    /// Drop tokens less probable than this fraction of the best
    #[arg(long, default_value_t = 0.05, value_name = "P", value_parser = fraction)]
    min_p: f32,
    /// Penalty on recent tokens as a factor; 1 is off
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = positive)]
    repeat_penalty: f32,
    /// Penalty subtracted from recent tokens' logits
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_hyphen_values = true, value_parser = finite)]
    presence_penalty: f32,
    /// Penalty subtracted for each occurrence of recent tokens
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_hyphen_values = true, value_parser = finite)]
    frequency_penalty: f32,
    /// Tokens that the penalties look back at
    #[arg(long, default_value_t = 64, value_name = "N")]
    repeat_last_n: u32,
    /// Add X to the logit of token ID (ID=X, X may be -inf); may be given several times
    #[arg(long, value_name = "ID=X", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers [default: a new one each run]
    #[arg(short, long)]
    seed: Option<u64>,
}

impl SamplingArgs {
    /// The sampler's settings; a missing seed is drawn from the clock.
    pub fn config(&self) -> SamplerConfig {
        let clock = || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(0, |d| d.as_nanos() as u64)
        };
        SamplerConfig {
            temperature: self.temp,
            top_k: self.top_k as usize,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: self.repeat_last_n as usize,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(clock),
        }
    }
}

#[derive(Args)]
pub struct TokenizeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub text: TextArgs,
    /// Do not begin with the beginning-of-text token
    #[arg(long)]
    pub no_bos: bool,
    /// Treat control tokens in the text as plain text
    #[arg(long)]
    pub no_special: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct InfoArgs {
    /// Model file (GGUF)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// List the tensors
    #[arg(long)]
    pub tensors: bool,
    /// List the metadata
    #[arg(long)]
    pub metadata: bool,
    /// Show what cached keys and values take in each format, and which context this machine's memory holds
    #[arg(long)]
    pub kv: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct PerplexityArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Text file; - for standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Positions of the context
    #[arg(short = 'c', long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub ctx_size: u32,
    /// How the text is cut: chunks is llama-perplexity's method (the second half of each chunk counts), window
    /// is one window from the start of which every token counts
    #[arg(long, default_value = "chunks")]
    pub method: PerplexityMethod,
    /// Instead of measuring, count how often the greedy choice differs between the --head given as it is, the same
    /// with the exact second look, and the stored head
    #[arg(long)]
    pub compare_heads: bool,
    /// Chunks to measure at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunks: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PerplexityMethod {
    Chunks,
    Window,
}

#[derive(Args)]
pub struct GateArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Text file; - for standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Positions of the context; the second half of each is measured
    #[arg(short = 'c', long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(4..))]
    pub ctx_size: u32,
    /// Chunks of the context's length to measure at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunks: Option<u32>,
    /// The cache to compare with: a format, or KEYS/VALUES such as f32/f16
    #[arg(long, default_value = "f32", value_name = "FORMAT")]
    pub reference: KvFormats,
    /// Tokens of the greedy continuations that are compared
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub greedy: u32,
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Compare every pair of formats for keys and values, of all formats or of those given, and judge each by its
    /// own limits
    #[arg(
        long,
        value_name = "FORMAT,...",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "all",
        value_parser = grid_formats,
        conflicts_with_all = ["kv", "kv_k", "kv_v", "max_kld", "max_delta", "min_top1", "min_cosine", "plot"]
    )]
    pub grid: Option<Grid>,
    /// Write a plot of the divergence at each position and of the layers' errors
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Print the tables in Markdown
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Formats whose pairs are compared.
#[derive(Clone)]
pub struct Grid(pub Vec<KvFormat>);

/// Limits in place of the candidate formats' own.
#[derive(Args, Clone)]
pub struct LimitArgs {
    /// Largest mean KL divergence, in nat a token [default: by format and size of the model]
    #[arg(long, value_name = "NAT", allow_hyphen_values = true, value_parser = non_negative_f64)]
    pub max_kld: Option<f64>,
    /// Largest change of the perplexity, in percent [default: by format and size of the model]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, value_parser = non_negative_f64)]
    pub max_delta: Option<f64>,
    /// Smallest share of equal greedy choices, in percent [default: by format and size of the model]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, value_parser = percent)]
    pub min_top1: Option<f64>,
    /// Smallest cosine of any layer's attention output [default: by format and size of the model]
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = cosine)]
    pub min_cosine: Option<f64>,
}

#[derive(Args)]
pub struct TraceArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Token ids, comma-separated
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "ID,ID,...",
        conflicts_with = "prompt",
        required_unless_present = "prompt"
    )]
    pub ids: Vec<u32>,
    /// A text instead of ids
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Output file (safetensors)
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// What to write
    #[arg(long, value_delimiter = ',', default_value = "logits")]
    pub points: Vec<TracePoint>,
    /// Rows that go through the model together
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch_size: u32,
    /// Print one JSON object about the file
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TracePoint {
    /// `logits [T, vocab]`
    Logits,
    /// `hidden.0` (scaled embedding), `hidden.i+1` (output of layer i), `final_norm`
    Hidden,
    /// `router.i.ids`, `router.i.weights`
    Router,
}

#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Measure a model of random weights instead, for example 26b-a4b:q4_k_m; it is made in the folder for temporary
    /// files (TMPDIR) and gone afterwards
    #[arg(long, value_name = "KIND[:TYPE]", conflicts_with = "model", value_parser = synthetic)]
    pub synthetic: Option<Synthetic>,
    /// Tokens of the prompt test; 0 leaves it out
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub prompt: u32,
    /// Tokens of the generation test; 0 leaves it out
    #[arg(long = "gen", default_value_t = 128, value_name = "N")]
    pub r#gen: u32,
    /// Positions already in the cache, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "D,...")]
    pub depth: Vec<u32>,
    /// Sequences that generate together, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "B,...", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub batch: Vec<u32>,
    /// Runs of each test
    #[arg(short, long, default_value_t = 5, value_name = "R", value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Profile a model of random weights instead, for example 26b-a4b:q4_k_m; it is made in the folder for temporary
    /// files (TMPDIR) and gone afterwards
    #[arg(long, value_name = "KIND[:TYPE]", conflicts_with = "model", value_parser = synthetic)]
    pub synthetic: Option<Synthetic>,
    /// Tokens of the prompt test; 0 leaves it out
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub prompt: u32,
    /// Tokens of the generation test; 0 leaves it out
    #[arg(long = "gen", default_value_t = 64, value_name = "N")]
    pub r#gen: u32,
    /// Positions already in the cache
    #[arg(long, default_value_t = 0, value_name = "D")]
    pub depth: u32,
    /// Sequences that generate together
    #[arg(long, default_value_t = 1, value_name = "B", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub batch: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ConvertArgs {
    /// Folder with config.json and safetensors files of a Gemma 3 or Gemma 4 model
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Output file
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Type of the output: f32, f16, bf16, q8_0, q4_k_m, ...
    #[arg(long = "type", default_value = "bf16", value_name = "TYPE", value_parser = file_type)]
    pub file_type: FileType,
    #[command(flatten)]
    pub rounding: RoundingArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct QuantizeArgs {
    /// Input file (GGUF), best in f32, f16 or bf16
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Output file
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Type of the output: f32 f16 bf16 q8_0 q6_k q5_k_m q5_k_s q5_1 q5_0 q4_k_m q4_k_s q4_1 q4_0 iq4_nl iq4_xs
    /// q3_k_l q3_k_m q3_k_s q2_k
    #[arg(value_name = "TYPE", value_parser = file_type)]
    pub file_type: FileType,
    #[command(flatten)]
    pub rounding: RoundingArgs,
    /// Show what would be written, without writing
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// How weights are rounded.
#[derive(Args)]
pub struct RoundingArgs {
    /// Importance matrix of the weights (made by an imatrix tool)
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Type of the tensors whose name matches a pattern, such as 'ffn_down_exps=q6_k'; may be given several times,
    /// the first that matches counts
    #[arg(long, value_name = "PATTERN=TYPE")]
    pub tensor: Vec<String>,
    /// Threads [default: all cores]
    #[arg(short, long, env = "LAPIDARY_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

#[derive(Args)]
pub struct SynthArgs {
    /// The model whose shape it has: 270m, e2b, e4b, 26b-a4b or 31b
    #[arg(value_name = "KIND")]
    pub kind: SyntheticKind,
    /// Output file
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Type of the output: q4_k_m, q8_0, bf16, ...
    #[arg(long = "type", default_value = "q4_k_m", value_name = "TYPE", value_parser = file_type)]
    pub file_type: FileType,
    /// Type of the tensors whose name matches a pattern, such as 'ffn_down_exps=q6_k'; may be given several times
    #[arg(long, value_name = "PATTERN=TYPE")]
    pub tensor: Vec<String>,
    /// Layers, if not all
    #[arg(long, value_name = "N")]
    pub layers: Option<u32>,
    /// Start of the random numbers
    #[arg(short, long, default_value_t = 1)]
    pub seed: u64,
    /// Threads [default: all cores]
    #[arg(short, long, env = "LAPIDARY_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Show what would be written, without writing
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A synthetic model and the type of its weights.
#[derive(Clone, Copy)]
pub struct Synthetic {
    pub kind: SyntheticKind,
    pub file_type: FileType,
}

fn synthetic(text: &str) -> Result<Synthetic, String> {
    let (kind, ty) = text.split_once(':').unwrap_or((text, "q4_k_m"));
    Ok(Synthetic { kind: kind.parse()?, file_type: file_type(ty)? })
}

#[derive(Args)]
pub struct DoctorArgs {
    /// Also check this model file
    #[arg(short, long, value_name = "FILE", env = "LAPIDARY_MODEL")]
    pub model: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

fn file_type(name: &str) -> Result<FileType, String> {
    FileType::from_name(name)
        .ok_or_else(|| format!("no such type; known: {}", FileType::ALL.map(FileType::name).join(" ")))
}

fn grid_formats(text: &str) -> Result<Grid, String> {
    if text == "all" {
        return Ok(Grid(KvFormat::ALL.to_vec()));
    }
    let mut formats = Vec::new();
    for name in text.split(',') {
        let format = name.parse()?;
        if !formats.contains(&format) {
            formats.push(format);
        }
    }
    Ok(Grid(formats))
}

fn within(text: &str, range: std::ops::RangeInclusive<f64>) -> Result<f64, String> {
    let value = text.parse::<f64>().map_err(|_| "not a number".to_owned())?;
    // NaN lies in no range.
    if range.contains(&value) {
        Ok(value)
    } else {
        Err(format!("must lie from {} to {}", range.start(), range.end()))
    }
}

fn non_negative_f64(text: &str) -> Result<f64, String> {
    within(text, 0.0..=f64::MAX).map_err(|_| "must be a number, not negative".into())
}

fn percent(text: &str) -> Result<f64, String> {
    within(text, 0.0..=100.0)
}

fn cosine(text: &str) -> Result<f64, String> {
    within(text, -1.0..=1.0)
}

fn number(text: &str) -> Result<f32, String> {
    text.parse::<f32>().map_err(|_| "not a number".to_owned())
}

fn finite(text: &str) -> Result<f32, String> {
    number(text).and_then(|x| if x.is_finite() { Ok(x) } else { Err("must be finite".into()) })
}

fn non_negative(text: &str) -> Result<f32, String> {
    finite(text).and_then(|x| if x >= 0.0 { Ok(x) } else { Err("must not be negative".into()) })
}

fn positive(text: &str) -> Result<f32, String> {
    finite(text).and_then(|x| if x > 0.0 { Ok(x) } else { Err("must be above zero".into()) })
}

fn fraction(text: &str) -> Result<f32, String> {
    finite(text)
        .and_then(|x| if (0.0..=1.0).contains(&x) { Ok(x) } else { Err("must lie from 0 to 1".into()) })
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let (id, value) = text.split_once('=').ok_or("expected ID=X")?;
    let id = id.parse().map_err(|_| format!("'{id}' is no token id"))?;
    let value = number(value)?;
    if value < f32::INFINITY { Ok((id, value)) } else { Err("the bias must be finite, or -inf".into()) }
}
