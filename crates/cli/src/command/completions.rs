//! `lapidary completions`.

use anyhow::Result;
use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs};

/// Prints the completion script of a shell.
pub fn run(args: CompletionsArgs) -> Result<()> {
    clap_complete::generate(args.shell, &mut Cli::command(), "lapidary", &mut std::io::stdout());
    Ok(())
}
