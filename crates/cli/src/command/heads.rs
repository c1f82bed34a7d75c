//! `lapidary perplexity --compare-heads`: how often a re-quantised output matrix changes the greedy choice.

use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use lapidary_engine::NoProbe;
use lapidary_engine::sample::argmax;
use lapidary_engine::tokenizer::EncodeOptions;
use serde::Serialize;

use crate::args::{HeadArg, PerplexityArgs, RunArgs, Switch};
use crate::device::{Device, on_device};
use crate::load;

#[derive(Serialize)]
struct Report {
    tokens: usize,
    coarse_differs: usize,
    reranked_differs: usize,
}

/// Runs the text three times and counts the differing choices.
pub fn run(args: &PerplexityArgs) -> Result<()> {
    if matches!(args.run.head, HeadArg::Auto | HeadArg::Native | HeadArg::Screened) {
        bail!("--compare-heads compares with the stored head; name another with --head f16 or --head q8_0");
    }
    let choices = |head: HeadArg, rerank: Switch| {
        let run = RunArgs { head, rerank, ..args.run.clone() };
        on_device!(&run, backend => choices(args, &run, backend))
    };
    let exact = choices(HeadArg::Native, Switch::Off)?;
    let differing = |other: Vec<u32>| exact.iter().zip(&other).filter(|(a, b)| a != b).count();
    let report = Report {
        tokens: exact.len(),
        coarse_differs: differing(choices(args.run.head, Switch::Off)?),
        reranked_differs: differing(choices(args.run.head, Switch::On)?),
    };
    let mut stdout = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &report)?;
        return Ok(writeln!(stdout)?);
    }
    let Report { tokens, coarse_differs, reranked_differs } = report;
    Ok(writeln!(
        stdout,
        "of {tokens} greedy choices {coarse_differs} differ from the stored head's, {reranked_differs} after the \
         exact second look"
    )?)
}

/// The greedy choice after each token of one window of the text.
fn choices<B: Device>(args: &PerplexityArgs, run: &RunArgs, backend: Arc<B>) -> Result<Vec<u32>> {
    let text = load::read(&args.file)?;
    let loaded = load::load(run, backend)?;
    let mut tokens = loaded.tokenizer()?.encode(&text, EncodeOptions { add_bos: true, parse_special: false });
    tokens.truncate(args.ctx_size as usize);
    let rows = load::rows_with_logits(loaded.model.config().vocab);
    let mut session = load::session(&loaded, run, tokens.len(), rows)?;
    let mut choices = Vec::with_capacity(tokens.len());
    session.feed_all(&tokens, &mut NoProbe, |_, logits| choices.push(argmax(logits)))?;
    choices.into_iter().collect::<Option<Vec<u32>>>().context("the model gave no finite logit")
}
