//! The `lapidary` binary: one file a subcommand, no logic of the engine.

mod args;
mod command;
mod demo;
mod device;
mod draft;
mod interrupt;
mod load;
mod memory;
mod output;
mod screened;
mod svg;
mod workload;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

/// Exit status of a run that the user interrupted.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    // clap prints usage errors itself and exits with status 2.
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Generate(args) => command::generate::run(*args),
        Command::Tokenize(args) => command::tokenize::run(args),
        Command::Info(args) => command::info::run(args),
        Command::Perplexity(args) => command::perplexity::run(args),
        Command::Gate(args) => command::gate::run(*args),
        Command::Trace(args) => command::trace::run(args),
        Command::Bench(args) => command::bench::run(args),
        Command::Profile(args) => command::profile::run(args),
        Command::Convert(args) => command::convert::run(args),
        Command::Quantize(args) => command::quantize::run(args),
        Command::Synth(args) => command::synth::run(args),
        Command::Doctor(args) => command::doctor::run(args),
        Command::Completions(args) => command::completions::run(args),
    };
    match result {
        Ok(()) if interrupt::happened() => ExitCode::from(INTERRUPTED),
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(_) if interrupt::happened() => {
            eprintln!("interrupted");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            eprintln!("{}", output::report(&error));
            ExitCode::FAILURE
        }
    }
}
