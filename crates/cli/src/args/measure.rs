//! Flags of the commands that measure, show and check.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lapidary_backend::KvFormat;
use lapidary_convert::{FileType, SyntheticKind};
use lapidary_engine::quality::KvFormats;

use super::run::RunArgs;
use super::value::{cosine, file_type, non_negative_f64, percent};

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
