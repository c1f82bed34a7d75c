//! `lapidary tokenize`.

use std::io::Write;

use anyhow::{Context, Result};
use lapidary_engine::tokenizer::EncodeOptions;
use serde::Serialize;

use crate::args::TokenizeArgs;
use crate::load;
use crate::output::{Table, printable};

#[derive(Serialize)]
struct Report {
    ids: Vec<u32>,
    pieces: Vec<String>,
}

/// Shows the tokens of a text.
pub fn run(args: TokenizeArgs) -> Result<()> {
    let gguf = load::open_model(&args.model)?;
    let tokenizer = load::tokenizer(&gguf)?.context("the file has no tokenizer")?;
    let text = load::text(&args.text)?;
    let options = EncodeOptions { add_bos: !args.no_bos, parse_special: !args.no_special };
    let ids = tokenizer.encode(&text, options);
    let mut pieces = Vec::with_capacity(ids.len());
    for &id in &ids {
        pieces.push(String::from_utf8_lossy(&tokenizer.piece(id)?).into_owned());
    }
    let mut stdout = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &Report { ids, pieces })?;
        return Ok(writeln!(stdout)?);
    }
    let mut table = Table::new(&[">id", "piece"]);
    for (id, piece) in ids.iter().zip(&pieces) {
        table.row([id.to_string(), format!("'{}'", printable(piece))]);
    }
    write!(stdout, "{}", table.render())?;
    eprintln!("{} tokens", ids.len());
    Ok(())
}
