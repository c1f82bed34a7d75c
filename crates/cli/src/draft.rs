//! Speculation as the flags ask for it, and what reports say of it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use lapidary_engine::speculate::{Drafter, LookupDrafter, ModelDrafter, Speculator, SpeculatorConfig};
use lapidary_engine::{KvCacheConfig, Model};
use serde::Serialize;

use crate::args::{DraftArgs, DraftSource, RunArgs, Switch};
use crate::device::Device;
use crate::load::{self, Loaded};

/// What speculation did.
#[derive(Clone, Serialize)]
pub struct SpeculationReport {
    drafter: String,
    /// Forward passes, those that checked guesses among them, and tokens that came out of all.
    passes: usize,
    drafted_passes: usize,
    tokens: usize,
    tokens_per_pass: f64,
    /// Guessed tokens that were checked, and that were the model's choice.
    drafted: usize,
    accepted: usize,
    acceptance: f64,
    /// For each depth, the share of guesses that held among those that got there.
    acceptance_by_depth: Vec<f64>,
    draft_ms: f64,
    switched_off: usize,
    /// Against one pass a token, estimated from this run's own passes of one row.
    estimated_speedup: Option<f64>,
}

impl SpeculationReport {
    /// The report of a sequence.
    pub fn of<B: Device>(speculator: &Speculator<B>) -> Self {
        let stats = speculator.stats();
        Self {
            drafter: speculator.drafter().name().to_owned(),
            passes: stats.passes,
            drafted_passes: stats.drafted_passes,
            tokens: stats.tokens,
            tokens_per_pass: stats.tokens_per_pass(),
            drafted: stats.drafted,
            accepted: stats.accepted,
            acceptance: stats.acceptance(),
            acceptance_by_depth: stats.acceptance_by_depth(),
            draft_ms: stats.draft_time.as_secs_f64() * 1e3,
            switched_off: stats.switched_off,
            estimated_speedup: stats.estimated_speedup(),
        }
    }
}

impl fmt::Display for SpeculationReport {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "draft {}: {} tokens in {} passes ({:.2} a pass), {} of {} guesses held",
            self.drafter, self.tokens, self.passes, self.tokens_per_pass, self.accepted, self.drafted
        )?;
        if let Some(speedup) = self.estimated_speedup {
            write!(f, ", about {speedup:.2} times as fast as without")?;
        }
        Ok(())
    }
}

/// The speculator that the flags ask for, for a text of up to `context` positions.
pub fn speculator<B: Device>(
    args: &DraftArgs,
    run: &RunArgs,
    loaded: &Loaded<B>,
    context: usize,
) -> Result<Option<Speculator<B>>> {
    let most = args.draft_max as usize;
    let drafter: Box<dyn Drafter<B>> = match &args.draft {
        DraftSource::Off => return Ok(None),
        DraftSource::Lookup => Box::new(LookupDrafter::new()),
        DraftSource::Model(path) => Box::new(model_drafter(path, run, loaded, (context, most))?),
    };
    let adapt = args.draft_adapt == Switch::On;
    Ok(Some(Speculator::new(drafter, SpeculatorConfig { max_nodes: most, max_depth: most, adapt })))
}

fn model_drafter<B: Device>(
    path: &Path,
    run: &RunArgs,
    loaded: &Loaded<B>,
    (context, depth): (usize, usize),
) -> Result<ModelDrafter<B>> {
    let what = || format!("--draft model={}", path.display());
    let gguf = load::open(path).with_context(what)?;
    let tokens = |gguf: &lapidary_gguf::Gguf| -> Result<Option<blake3::Hash>> {
        let Some(tokens) = gguf.metadata().opt_strings("tokenizer.ggml.tokens")? else { return Ok(None) };
        let mut hasher = blake3::Hasher::new();
        for token in tokens.iter() {
            hasher.update(&(token.len() as u64).to_le_bytes());
            hasher.update(token.as_ref());
        }
        Ok(Some(hasher.finalize()))
    };
    if tokens(&gguf).with_context(what)? != tokens(&loaded.gguf)? {
        bail!("{}: its tokens are not those of the model, so it cannot draft for it", what());
    }
    let backend = Arc::clone(loaded.model.backend());
    let model = Arc::new(Model::load(&gguf, backend, &mut |_, _| ()).with_context(what)?);
    let (k_format, v_format) = run.kv.formats(model.config(), B::PREFERRED_KV);
    let budget = load::kv_budget(loaded, run.kv.kv_memory);
    // Drafts reach beyond the text.
    let config = KvCacheConfig { k_format, v_format, context: context + depth + 1, budget };
    Ok(ModelDrafter::new(model, config, depth)?)
}
