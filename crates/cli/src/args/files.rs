//! Flags of the commands that write model files.

use std::path::PathBuf;

use clap::Args;
use lapidary_convert::{FileType, SyntheticKind};

use super::value::file_type;

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
