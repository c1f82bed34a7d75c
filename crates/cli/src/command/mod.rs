//! One module a subcommand.

pub mod bench;
pub mod completions;
pub mod convert;
pub mod doctor;
pub mod gate;
pub mod generate;
mod heads;
pub mod info;
pub mod perplexity;
pub mod profile;
pub mod quantize;
pub mod synth;
pub mod tokenize;
pub mod trace;
