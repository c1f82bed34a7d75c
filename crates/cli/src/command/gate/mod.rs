//! `lapidary gate`.

mod plot;
mod report;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use lapidary_backend::KvFormat;
use lapidary_engine::quality::{Comparison, GateOptions, KvFormats, Miss, Thresholds, compare};
use lapidary_engine::tokenizer::EncodeOptions;
use lapidary_engine::{Config, DEFAULT_BATCH};

use crate::args::{ActivationsArg, GateArgs, Grid};
use crate::device::{Device, on_device};
use crate::interrupt;
use crate::load::{self, Loaded};
use crate::memory;

/// A judged comparison.
struct Verdict {
    comparison: Comparison,
    thresholds: Thresholds,
    missed: Vec<Miss>,
    /// Bytes of a position's keys and values.
    bytes_per_token: usize,
}

/// Measures what a cache costs in quality.
pub fn run(args: GateArgs) -> Result<()> {
    let cancel = interrupt::install()?;
    if let Some(plot) = &args.plot {
        check_plot(&args, plot)?;
    }
    let text = load::read(&args.file)?;
    on_device!(&args.run, backend => gate(&args, &text, backend, cancel))
}

fn gate<B: Device>(args: &GateArgs, text: &[u8], backend: Arc<B>, cancel: &AtomicBool) -> Result<()> {
    let loaded = load::load(&args.run, backend)?;
    let tokens = loaded.tokenizer()?.encode(text, EncodeOptions { add_bos: true, parse_special: false });
    let parameters: u64 = loaded.gguf.tensors().iter().map(|t| t.elements()).sum();
    let candidates = candidates(args, loaded.model.config())?;
    if args.run.activations == ActivationsArg::Q8 {
        eprintln!(
            "note: activations are rounded to 8 bits; that amplifies any difference to far above what a good cache \
             costs. --activations f32 measures the cache alone"
        );
    }
    let comparisons = measure(args, &loaded, &tokens, &candidates, cancel)?;
    let judge = |comparison: Comparison| {
        let mut thresholds = Thresholds::for_formats(comparison.candidate, parameters);
        override_limits(args, &mut thresholds);
        Verdict {
            missed: thresholds.missed(&comparison),
            bytes_per_token: comparison.candidate.size(loaded.model.config()).per_position(),
            thresholds,
            comparison,
        }
    };
    let verdicts: Vec<Verdict> = comparisons.into_iter().map(judge).collect();
    if args.grid.is_some() {
        return report::grid(args, &loaded, &verdicts);
    }
    let verdict = verdicts.first().context("nothing was compared")?;
    report::single(args, &loaded, verdict)?;
    if let Some(path) = &args.plot {
        let svg = plot::draw(args, loaded.model.config(), verdict);
        std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if verdict.missed.is_empty() {
        return Ok(());
    }
    report::shortfall(verdict);
    let Comparison { candidate, reference, .. } = &verdict.comparison;
    bail!("a {candidate} cache falls short of its limits against {reference}")
}

/// Refuses to replace what is no plot.
fn check_plot(args: &GateArgs, plot: &Path) -> Result<()> {
    if plot.metadata().is_ok_and(|found| !found.is_file()) {
        bail!("{} exists and is no regular file; name another file with --plot", plot.display());
    }
    let folder = plot.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        bail!("{} is no folder; name another file with --plot", folder.display());
    }
    let inputs = args.run.model.model.iter().chain([&args.file]);
    for input in inputs {
        if let (Ok(input), Ok(plot)) = (input.canonicalize(), plot.canonicalize())
            && input == plot
        {
            bail!("{} is an input; name another file with --plot", plot.display());
        }
    }
    Ok(())
}

/// The caches to compare: the one of the flags, or the grid's.
fn candidates(args: &GateArgs, config: &Config) -> Result<Vec<KvFormats>> {
    let Some(Grid(formats)) = &args.grid else {
        let (keys, values) = args.run.kv.formats(config, KvFormat::Tq8);
        return Ok(vec![KvFormats { keys, values }]);
    };
    let (fit, skipped): (Vec<KvFormat>, Vec<KvFormat>) =
        formats.iter().partition(|&&f| KvFormats { keys: f, values: f }.support(config));
    if !skipped.is_empty() {
        let names: Vec<&str> = skipped.into_iter().map(KvFormat::name).collect();
        eprintln!("left out, because they cannot hold this model's heads: {}", names.join(", "));
    }
    let mut pairs = KvFormats::pairs(&fit);
    pairs.retain(|&pair| pair != args.reference);
    if pairs.is_empty() {
        bail!("the grid holds nothing but the reference, {}; name more formats", args.reference);
    }
    Ok(pairs)
}

/// Compares the candidates, as many together as memory allows.
fn measure<B: Device>(
    args: &GateArgs,
    loaded: &Loaded<B>,
    tokens: &[u32],
    candidates: &[KvFormats],
    cancel: &AtomicBool,
) -> Result<Vec<Comparison>> {
    let (model, context) = (&loaded.model, args.ctx_size as usize);
    let size = |formats: &KvFormats| formats.size(model.config()).of_sequence(context, DEFAULT_BATCH);
    let budget = load::kv_budget(loaded, args.run.kv.kv_memory).unwrap_or(usize::MAX);
    let check = |formats: KvFormats, budget: usize| {
        memory::check(model.config(), (formats.keys, formats.values), context, DEFAULT_BATCH, budget)
    };
    check(args.reference, budget)?;
    let beside_reference = budget - size(&args.reference);
    candidates.iter().try_for_each(|&candidate| {
        check(candidate, beside_reference)
            .with_context(|| format!("no room beside the {} reference", args.reference))
    })?;
    let tokenizer = loaded.tokenizer()?;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let bar = load::progress_bar("tokens");
    let mut comparisons = Vec::with_capacity(candidates.len());
    for group in groups(candidates, size, beside_reference) {
        let options = GateOptions {
            reference: args.reference,
            candidates: group.to_vec(),
            context,
            max_chunks: args.chunks.map_or(usize::MAX, |n| n as usize),
            batch_rows: load::rows_with_logits(model.config().vocab),
            greedy_tokens: args.greedy as usize,
            end_tokens: (0..tokenizer.n_tokens() as u32)
                .filter(|&id| tokenizer.is_end_of_generation(id))
                .collect(),
            threads: args.run.threads.map_or(cores, usize::from),
        };
        let finished = comparisons.len();
        let mut progress = |done: usize, total: usize| {
            let share = total / group.len();
            bar.set_length((share * candidates.len()) as u64);
            bar.set_position((share * finished + done) as u64);
        };
        comparisons.extend(compare(model, tokens, &options, &mut progress, cancel)?);
    }
    bar.finish_and_clear();
    Ok(comparisons)
}

/// Cuts the candidates into groups whose caches together keep to `budget` bytes; a larger one stands alone.
fn groups(candidates: &[KvFormats], bytes: impl Fn(&KvFormats) -> usize, budget: usize) -> Vec<&[KvFormats]> {
    let mut groups = Vec::new();
    let (mut begin, mut sum) = (0, 0usize);
    for (i, size) in candidates.iter().map(bytes).enumerate() {
        if i > begin && sum.saturating_add(size) > budget {
            groups.push(&candidates[begin..i]);
            (begin, sum) = (i, 0);
        }
        sum = sum.saturating_add(size);
    }
    groups.push(&candidates[begin..]);
    groups
}

fn override_limits(args: &GateArgs, thresholds: &mut Thresholds) {
    let limits = &args.limits;
    let set = |target: &mut f64, value: Option<f64>| *target = value.unwrap_or(*target);
    set(&mut thresholds.kld_mean, limits.max_kld);
    set(&mut thresholds.delta_percent, limits.max_delta);
    set(&mut thresholds.same_top1, limits.min_top1.map(|percent| percent / 100.0));
    set(&mut thresholds.cosine, limits.min_cosine);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_keep_to_the_memory_and_lose_nothing() {
        let pairs = KvFormats::pairs(&KvFormat::ALL);
        let all: Vec<KvFormats> = groups(&pairs, |_| 20, 100).concat();
        assert_eq!(all, pairs);
        assert!(groups(&pairs, |_| 20, 100).iter().all(|group| group.len() <= 5));
        assert!(groups(&pairs, |_| usize::MAX, 100).iter().all(|group| group.len() == 1));
        assert_eq!(groups(&pairs, |_| 1, usize::MAX).len(), 1);
    }
}
