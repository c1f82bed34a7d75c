//! What the gate prints.

use std::io::Write;

use anyhow::Result;
use lapidary_engine::quality::{Comparison, Thresholds};
use serde::Serialize;

use super::Verdict;
use crate::args::GateArgs;
use crate::device::Device;
use crate::load::Loaded;
use crate::output::{Table, count};

/// Misses that are listed one by one.
const LISTED: usize = 4;

#[derive(Serialize)]
struct Cache {
    keys: &'static str,
    values: &'static str,
    bytes_per_token: usize,
    perplexity: f64,
}

#[derive(Serialize)]
struct Layer {
    layer: usize,
    cosine: f64,
    rel_l2: f64,
}

#[derive(Serialize)]
struct Limits {
    delta_percent: f64,
    kld_mean: f64,
    same_top1: f64,
    cosine: f64,
}

#[derive(Serialize)]
struct Entry {
    candidate: Cache,
    /// Change of the perplexity, and one standard error of it.
    delta_percent: f64,
    delta_uncertainty: f64,
    kld_mean: f64,
    kld_p99: f64,
    /// A share, 0 to 1.
    same_top1: f64,
    /// Equal tokens of the greedy continuation, null when all are.
    first_divergence: Option<usize>,
    layers: Vec<Layer>,
    thresholds: Limits,
    passed: bool,
    missed: Vec<String>,
}

/// What all candidates share.
#[derive(Serialize)]
struct Run {
    context: usize,
    tokens: usize,
    greedy_tokens: usize,
    reference: Cache,
}

#[derive(Serialize)]
struct Single {
    #[serde(flatten)]
    run: Run,
    #[serde(flatten)]
    entry: Entry,
}

#[derive(Serialize)]
struct Rows {
    #[serde(flatten)]
    run: Run,
    rows: Vec<Entry>,
}

fn shared<B: Device>(args: &GateArgs, loaded: &Loaded<B>, comparison: &Comparison) -> Run {
    Run {
        context: args.ctx_size as usize,
        tokens: comparison.tokens.len(),
        greedy_tokens: comparison.greedy_tokens,
        reference: Cache {
            keys: args.reference.keys.name(),
            values: args.reference.values.name(),
            bytes_per_token: args.reference.size(loaded.model.config()).per_position(),
            perplexity: comparison.reference_perplexity(),
        },
    }
}

fn entry(verdict: &Verdict) -> Entry {
    let Verdict { comparison, thresholds, missed, bytes_per_token } = verdict;
    let Thresholds { delta_percent, kld_mean, same_top1, cosine } = *thresholds;
    let layers = comparison.layers.iter().enumerate();
    Entry {
        candidate: Cache {
            keys: comparison.candidate.keys.name(),
            values: comparison.candidate.values.name(),
            bytes_per_token: *bytes_per_token,
            perplexity: comparison.candidate_perplexity(),
        },
        delta_percent: comparison.delta_percent(),
        delta_uncertainty: comparison.delta_uncertainty(),
        kld_mean: comparison.kld_mean(),
        kld_p99: comparison.kld_p99(),
        same_top1: comparison.same_top1(),
        first_divergence: comparison.first_divergence,
        layers: layers.map(|(layer, e)| Layer { layer, cosine: e.cosine, rel_l2: e.rel_l2 }).collect(),
        thresholds: Limits { delta_percent, kld_mean, same_top1, cosine },
        passed: missed.is_empty(),
        missed: missed.iter().map(ToString::to_string).collect(),
    }
}

/// Prints one comparison.
pub fn single<B: Device>(args: &GateArgs, loaded: &Loaded<B>, verdict: &Verdict) -> Result<()> {
    let comparison = &verdict.comparison;
    let run = shared(args, loaded, comparison);
    let mut stdout = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &Single { run, entry: entry(verdict) })?;
        return Ok(writeln!(stdout)?);
    }
    writeln!(
        stdout,
        "{} against {}: {} and {} bytes a token; {} tokens measured, context {}\n",
        comparison.candidate,
        comparison.reference,
        count(verdict.bytes_per_token as u64),
        count(run.reference.bytes_per_token as u64),
        count(run.tokens as u64),
        run.context
    )?;
    print(args, &mut stdout, &summary(verdict))?;
    writeln!(stdout)?;
    print(args, &mut stdout, &layers(verdict))
}

fn print(args: &GateArgs, stdout: &mut impl Write, table: &Table) -> Result<()> {
    let text = if args.markdown { table.markdown() } else { table.render() };
    Ok(stdout.write_all(text.as_bytes())?)
}

fn summary(verdict: &Verdict) -> Table {
    let Verdict { comparison, thresholds: limits, .. } = verdict;
    let mut table = Table::new(&["measure", ">found", ">limit", ""]);
    let mut row = |name: &str, found: String, limit: Option<String>, within: bool| {
        let verdict = match (&limit, within) {
            (None, _) => "",
            (_, true) => "ok",
            (_, false) => "MISSED",
        };
        table.row([name.to_owned(), found, limit.unwrap_or_default(), verdict.to_owned()]);
    };
    let (kld, top1, delta) = (comparison.kld_mean(), comparison.same_top1(), comparison.delta_percent());
    row(
        "KL divergence, mean (nat)",
        small(kld),
        Some(format!("<= {}", limits.kld_mean)),
        kld <= limits.kld_mean,
    );
    row("KL divergence, 99th percentile", small(comparison.kld_p99()), None, true);
    let limit = format!(">= {} %", rounded(100.0 * limits.same_top1));
    row("same greedy choice", format!("{:.2} %", 100.0 * top1), Some(limit), top1 >= limits.same_top1);
    let found = format!("{delta:+.3} % +/- {:.3}", comparison.delta_uncertainty());
    let limit = format!("<= {} %", limits.delta_percent);
    row("perplexity, change", found, Some(limit), delta.abs() <= limits.delta_percent);
    row("perplexity, reference", format!("{:.4}", comparison.reference_perplexity()), None, true);
    row("perplexity, candidate", format!("{:.4}", comparison.candidate_perplexity()), None, true);
    row("greedy texts part after", parting(comparison), None, true);
    if let Some((layer, worst)) = comparison.worst_layer() {
        let limit = format!(">= {}", rounded(limits.cosine));
        let within = worst.cosine >= limits.cosine;
        row(&format!("least cosine (layer {layer})"), format!("{:.6}", worst.cosine), Some(limit), within);
    }
    table
}

fn layers(verdict: &Verdict) -> Table {
    let mut table = Table::new(&[">layer", ">1 - cosine", ">relative L2 error"]);
    for (layer, error) in verdict.comparison.layers.iter().enumerate() {
        table.row([layer.to_string(), small(1.0 - error.cosine), small(error.rel_l2)]);
    }
    table
}

/// Prints all pairs, a line each.
pub fn grid<B: Device>(args: &GateArgs, loaded: &Loaded<B>, verdicts: &[Verdict]) -> Result<()> {
    let Some(first) = verdicts.first() else { return Ok(()) };
    let run = shared(args, loaded, &first.comparison);
    let mut stdout = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &Rows { run, rows: verdicts.iter().map(entry).collect() })?;
        return Ok(writeln!(stdout)?);
    }
    writeln!(
        stdout,
        "reference {}: {} bytes a token, perplexity {:.4}; {} tokens measured, context {}\n",
        args.reference,
        count(run.reference.bytes_per_token as u64),
        run.reference.perplexity,
        count(run.tokens as u64),
        run.context
    )?;
    let headings = [
        "keys",
        "values",
        ">bytes/token",
        ">KLD mean",
        ">KLD p99",
        ">same top-1",
        ">perplexity",
        ">change",
        ">least cosine",
        ">same greedy",
        "verdict",
    ];
    let mut table = Table::new(&headings);
    for Verdict { comparison, missed, bytes_per_token, .. } in verdicts {
        table.row([
            comparison.candidate.keys.to_string(),
            comparison.candidate.values.to_string(),
            count(*bytes_per_token as u64),
            small(comparison.kld_mean()),
            small(comparison.kld_p99()),
            format!("{:.2} %", 100.0 * comparison.same_top1()),
            format!("{:.4}", comparison.candidate_perplexity()),
            format!("{:+.3} %", comparison.delta_percent()),
            comparison.worst_layer().map_or_else(String::new, |(_, worst)| format!("{:.6}", worst.cosine)),
            comparison.first_divergence.map_or_else(|| "all".to_owned(), |n| n.to_string()),
            if missed.is_empty() { "ok" } else { "missed" }.to_owned(),
        ]);
    }
    print(args, &mut stdout, &table)
}

/// Lists the limits that were missed.
pub fn shortfall(verdict: &Verdict) {
    let missed = &verdict.missed;
    missed.iter().take(LISTED).for_each(|miss| eprintln!("missed: {miss}"));
    if missed.len() > LISTED {
        // Layers come last in the list.
        eprintln!("missed: the cosine of {} more layers", missed.len() - LISTED);
    }
}

fn parting(comparison: &Comparison) -> String {
    match (comparison.first_divergence, comparison.greedy_tokens) {
        (_, 0) => "not compared".to_owned(),
        (Some(n), all) => format!("{n} of {all} tokens"),
        (None, all) => format!("never in {all} tokens"),
    }
}

/// A figure of any magnitude.
fn small(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { format!("{value:.2e}") }
}

/// A limit without the noise of binary fractions.
fn rounded(limit: f64) -> f64 {
    (limit * 1e9).round() / 1e9
}
