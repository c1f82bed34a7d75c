//! `lapidary perplexity`.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use lapidary_engine::sample::log_sum_exp;
use lapidary_engine::tokenizer::EncodeOptions;
use lapidary_engine::{NoProbe, Session};
use serde::Serialize;

use crate::args::{PerplexityArgs, PerplexityMethod};
use crate::device::{Device, on_device};
use crate::interrupt;
use crate::load;

#[derive(Serialize)]
struct Report {
    perplexity: f64,
    /// One standard error of the perplexity.
    uncertainty: f64,
    tokens: usize,
    nll: Vec<f64>,
}

/// Measures how well a model predicts a text.
pub fn run(args: PerplexityArgs) -> Result<()> {
    if args.compare_heads {
        return super::heads::run(&args);
    }
    let cancel = interrupt::install()?;
    let text = load::read(&args.file)?;
    on_device!(&args.run, backend => measure(&args, &text, backend, cancel))
}

fn measure<B: Device>(
    args: &PerplexityArgs,
    text: &[u8],
    backend: Arc<B>,
    cancel: &AtomicBool,
) -> Result<()> {
    let loaded = load::load(&args.run, backend)?;
    let tokens = loaded.tokenizer()?.encode(text, EncodeOptions { add_bos: true, parse_special: false });
    let context = args.ctx_size as usize;
    let rows = load::rows_with_logits(loaded.model.config().vocab);
    let mut session = load::session(&loaded, &args.run, context, rows)?;
    let begin = Instant::now();
    let nll = match args.method {
        PerplexityMethod::Window => window(&mut session, &tokens, context)?,
        PerplexityMethod::Chunks => chunks(args, &mut session, &tokens, cancel)?,
    };
    if nll.is_empty() {
        bail!("interrupted before the first token was measured");
    }
    let seconds = begin.elapsed().as_secs_f64();
    report(args, nll, seconds)
}

/// One window from the start; every token after the first is predicted.
fn window<B: Device>(session: &mut Session<B>, tokens: &[u32], context: usize) -> Result<Vec<f64>> {
    let tokens = &tokens[..tokens.len().min(context)];
    if tokens.len() < 2 {
        bail!("the text has {} tokens; two are needed to predict one", tokens.len());
    }
    let mut nll = Vec::with_capacity(tokens.len() - 1);
    let bar = load::progress_bar("tokens");
    bar.set_length(tokens.len() as u64 - 1);
    session.feed_all(&tokens[..tokens.len() - 1], &mut NoProbe, |i, logits| {
        nll.push(negative_log_likelihood(logits, tokens[i + 1]));
        bar.inc(1);
    })?;
    bar.finish_and_clear();
    Ok(nll)
}

/// llama-perplexity's method: chunks of `context` tokens that begin with the first token of the text (BOS); the
/// tokens of each chunk's second half are predicted.
fn chunks<B: Device>(
    args: &PerplexityArgs,
    session: &mut Session<B>,
    tokens: &[u32],
    cancel: &AtomicBool,
) -> Result<Vec<f64>> {
    let context = args.ctx_size as usize;
    if context < 3 {
        bail!("a chunk of {context} tokens has no second half to predict; give -c 3 or more");
    }
    if tokens.len() < 2 * context {
        let n = tokens.len();
        bail!(
            "the text has {n} tokens; this method needs two chunks of {context}: lower -c, or use --method window"
        );
    }
    let mut chunks: Vec<Vec<u32>> = tokens.chunks_exact(context).map(<[u32]>::to_vec).collect();
    chunks.truncate(args.chunks.map_or(usize::MAX, |n| n as usize));
    let bar = load::progress_bar("chunks");
    bar.set_length(chunks.len() as u64);
    let mut nll = Vec::new();
    let half = context / 2;
    for chunk in &mut chunks {
        if cancel.load(Ordering::Relaxed) {
            break;
        }
        chunk[0] = tokens[0];
        session.reset();
        session.feed(&chunk[..half], &AtomicBool::new(false))?;
        session.feed_all(&chunk[half..context - 1], &mut NoProbe, |i, logits| {
            nll.push(negative_log_likelihood(logits, chunk[half + i + 1]));
        })?;
        bar.inc(1);
        bar.set_message(format!("chunks, perplexity {:.4}", mean(&nll).exp()));
    }
    bar.finish_and_clear();
    Ok(nll)
}

fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    log_sum_exp(logits) - f64::from(logits[token as usize])
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn report(args: &PerplexityArgs, nll: Vec<f64>, seconds: f64) -> Result<()> {
    let average = mean(&nll);
    let perplexity = average.exp();
    let variance = nll.iter().map(|x| (x - average).powi(2)).sum::<f64>() / (nll.len() as f64 - 1.0).max(1.0);
    let uncertainty = perplexity * (variance / nll.len() as f64).sqrt();
    let mut stdout = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &Report { perplexity, uncertainty, tokens: nll.len(), nll })?;
        return Ok(writeln!(stdout)?);
    }
    writeln!(stdout, "perplexity {perplexity:.4} +/- {uncertainty:.4} over {} tokens", nll.len())?;
    eprintln!("{seconds:.1} s");
    Ok(())
}
