//! Flags of the commands that write or cut text.

use std::path::PathBuf;

use clap::Args;
use lapidary_engine::SamplerConfig;

use super::run::{KvStoreArgs, ModelArgs, RunArgs, Switch, TextArgs};
use super::value::{bias, finite, fraction, non_negative, positive};

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
