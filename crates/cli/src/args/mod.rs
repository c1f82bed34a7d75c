//! The command line.

mod files;
mod generate;
mod measure;
mod run;
mod value;

use clap::{Args, Parser, Subcommand};

pub use files::{ConvertArgs, QuantizeArgs, RoundingArgs, SynthArgs};
pub use generate::{DraftArgs, DraftSource, GenerateArgs, TokenizeArgs};
pub use measure::{
    BenchArgs, DoctorArgs, GateArgs, Grid, InfoArgs, PerplexityArgs, PerplexityMethod, ProfileArgs,
    Synthetic, TraceArgs, TracePoint,
};
pub use run::{ActivationsArg, HeadArg, KvStoreArgs, ModelArgs, RunArgs, Switch, TextArgs};

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

#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}
