//! Running the caches side by side.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lapidary_backend::{Backend, Choices};

use super::stats::{Distribution, Similarity, TokenComparison};
use super::{Comparison, KvFormats, QualityError};
use crate::batch::{Batch, Want};
use crate::kv::{KvCache, KvCacheConfig, SequenceId};
use crate::model::{Model, Output, Workspace};
use crate::probe::{NoProbe, Point, Probe};
use crate::sample::argmax;
use crate::session::DEFAULT_BATCH;

type Result<T> = std::result::Result<T, QualityError>;

/// Told how many of how many tokens are done.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// What is compared, and on how much text.
#[derive(Clone, Debug)]
pub struct GateOptions {
    /// The cache that the others are compared with.
    pub reference: KvFormats,
    /// The caches to judge.
    pub candidates: Vec<KvFormats>,
    /// Positions of the context, and tokens of a chunk.
    pub context: usize,
    /// Chunks to measure at most.
    pub max_chunks: usize,
    /// Rows whose logits are held at the same time: of the reference, and of one candidate.
    pub batch_rows: usize,
    /// Tokens of the greedy continuation at most; it starts behind the first half of the first chunk and ends with
    /// the context.
    pub greedy_tokens: usize,
    /// Tokens that end the greedy continuation.
    pub end_tokens: Vec<u32>,
    /// Threads for the statistics.
    pub threads: usize,
}

/// Runs `tokens` through the reference and the candidates, batch by batch, and compares. `cancel` is looked at between
/// batches.
///
/// The memory for logits is that of [`batch_rows`](GateOptions::batch_rows), whatever the length of the text.
///
/// # Errors
/// When the text does not fill a context, the context is not the model's, the logits are not finite, or `cancel` is
/// set.
pub fn compare<B: Backend>(
    model: &Model<B>,
    tokens: &[u32],
    options: &GateOptions,
    progress: Progress,
    cancel: &AtomicBool,
) -> Result<Vec<Comparison>> {
    check(model, tokens, options)?;
    let chunks = (tokens.len() / options.context).min(options.max_chunks);
    let lane = |&formats: &KvFormats| Lane::new(model, formats, options.context);
    let half = options.context / 2;
    let greedy = options.greedy_tokens.min(options.context - half);
    let mut gate = Gate {
        reference: lane(&options.reference)?,
        candidates: options.candidates.iter().map(lane).collect::<Result<_>>()?,
        options,
        runner: Runner { model, workspace: Workspace::new(), batch: Batch::new(), done: 0, progress, cancel },
        lane_tokens: chunks * (options.context - 1) + if greedy > 0 { half + greedy } else { 0 },
    };
    let greedy_tokens = if greedy > 0 { gate.continuations(&tokens[..half], greedy)? } else { 0 };
    for chunk in tokens.chunks_exact(options.context).take(chunks) {
        let mut chunk = chunk.to_vec();
        chunk[0] = tokens[0];
        gate.chunk(&chunk)?;
    }
    let n_layers = model.config().layers.len();
    let finish = |lane: Lane<B>| Comparison {
        reference: options.reference,
        candidate: lane.formats,
        tokens: lane.tokens,
        layers: (0..n_layers).map(|i| lane.layers.get(i).copied().unwrap_or_default().into()).collect(),
        first_divergence: lane.first_divergence,
        greedy_tokens,
    };
    Ok(gate.candidates.into_iter().map(finish).collect())
}

fn check<B: Backend>(model: &Model<B>, tokens: &[u32], options: &GateOptions) -> Result<()> {
    let (context, trained) = (options.context, model.config().context_length);
    if context < 4 {
        return Err(QualityError::ContextTooSmall(context));
    }
    if context > trained {
        return Err(QualityError::ContextTooLarge { context, trained });
    }
    if tokens.len() < context {
        return Err(QualityError::TextTooShort { tokens: tokens.len(), context });
    }
    Ok(())
}

/// One cache with its sequence, and what was found about it.
struct Lane<B: Backend> {
    formats: KvFormats,
    cache: KvCache<B>,
    sequence: SequenceId,
    tokens: Vec<TokenComparison>,
    layers: Vec<Similarity>,
    first_divergence: Option<usize>,
}

impl<B: Backend> Lane<B> {
    fn new(model: &Model<B>, formats: KvFormats, context: usize) -> Result<Self> {
        let config =
            KvCacheConfig { k_format: formats.keys, v_format: formats.values, context, budget: None };
        let mut cache = KvCache::new(Arc::clone(model.backend()), model.config(), config)?;
        let sequence = cache.create();
        Ok(Self { formats, cache, sequence, tokens: Vec::new(), layers: Vec::new(), first_divergence: None })
    }

    fn reset(&mut self) {
        self.cache.release(self.sequence);
        self.sequence = self.cache.create();
    }

    fn not_finite(&self, position: usize) -> QualityError {
        QualityError::NotFinite { formats: self.formats, position }
    }
}

/// A comparison in flight.
struct Gate<'a, B: Backend> {
    reference: Lane<B>,
    candidates: Vec<Lane<B>>,
    options: &'a GateOptions,
    runner: Runner<'a, B>,
    /// Rows that go through each lane in all.
    lane_tokens: usize,
}

/// What all lanes share: weights, workspace, and the user who waits.
struct Runner<'a, B: Backend> {
    model: &'a Model<B>,
    workspace: Workspace<B>,
    batch: Batch,
    done: usize,
    progress: Progress<'a>,
    cancel: &'a AtomicBool,
}

/// Which rows of a pass give logits.
#[derive(Clone, Copy)]
enum Logits {
    Nowhere,
    Last,
    Everywhere,
}

impl<B: Backend> Gate<'_, B> {
    fn batch_rows(&self) -> usize {
        self.options.batch_rows.max(1)
    }

    fn total(&self) -> usize {
        (1 + self.candidates.len()) * self.lane_tokens
    }

    /// Measures the second half of a chunk.
    fn chunk(&mut self, chunk: &[u32]) -> Result<()> {
        let (half, total) = (chunk.len() / 2, self.total());
        for lane in std::iter::once(&mut self.reference).chain(&mut self.candidates) {
            lane.reset();
            for rows in chunk[..half].chunks(DEFAULT_BATCH) {
                self.runner.forward(lane, rows, Logits::Nowhere, &mut NoProbe)?;
                self.runner.tell(total);
            }
        }
        let mut begin = half;
        for rows in chunk[half..chunk.len() - 1].chunks(self.batch_rows()) {
            self.measure(rows, begin, &chunk[begin + 1..=begin + rows.len()])?;
            self.runner.tell(total);
            begin += rows.len();
        }
        Ok(())
    }

    /// Compares the logits after `rows`, which stand at positions from `begin` and are followed by `next`.
    fn measure(&mut self, rows: &[u32], begin: usize, next: &[u32]) -> Result<()> {
        let (threads, runner) = (self.options.threads, &mut self.runner);
        let mut recorder = Recorder::default();
        let output = runner.forward(&mut self.reference, rows, Logits::Everywhere, &mut recorder)?;
        let references = parallel(rows.len(), threads, |i| Distribution::new(output.logits(i)));
        if let Some(i) = references.iter().position(|distribution| !distribution.is_finite()) {
            return Err(self.reference.not_finite(begin + i));
        }
        for lane in &mut self.candidates {
            let mut layers = std::mem::take(&mut lane.layers);
            let mut comparer = Comparer { reference: &recorder, layers: &mut layers };
            let output = runner.forward(lane, rows, Logits::Everywhere, &mut comparer)?;
            lane.layers = layers;
            let compare = |i: usize| references[i].compare(output.logits(i), begin + i, next[i]);
            for (i, token) in parallel(rows.len(), threads, compare).into_iter().enumerate() {
                lane.tokens.push(token.ok_or_else(|| lane.not_finite(begin + i))?);
            }
        }
        Ok(())
    }

    /// Continues `prompt` greedily with the reference and finds where each candidate's own continuation parts from
    /// it. Returns the length of the reference's.
    ///
    /// Up to the first difference the two are the same tokens. A candidate is therefore fed those of the reference,
    /// many rows a pass, until it chooses otherwise.
    fn continuations(&mut self, prompt: &[u32], n: usize) -> Result<usize> {
        let (batch_rows, total) = (self.batch_rows(), self.total());
        let lane = &mut self.reference;
        let mut choice = self.runner.prompt(lane, prompt)?;
        let mut expected = vec![choice];
        while expected.len() < n && !self.options.end_tokens.contains(&choice) {
            let output = self.runner.forward(lane, &[choice], Logits::Last, &mut NoProbe)?;
            choice = greedy(lane, output.logits(0), prompt.len() + expected.len() - 1)?;
            expected.push(choice);
            self.runner.tell(total);
        }
        for lane in &mut self.candidates {
            lane.first_divergence = self.runner.divergence(lane, prompt, &expected, batch_rows)?;
            self.runner.tell(total);
        }
        // A continuation may end early.
        self.runner.done = (1 + self.candidates.len()) * (prompt.len() + n);
        Ok(expected.len())
    }
}

impl<B: Backend> Runner<'_, B> {
    /// Number of greedy choices after `prompt` that are those of `expected`, absent when all are.
    fn divergence(
        &mut self,
        lane: &mut Lane<B>,
        prompt: &[u32],
        expected: &[u32],
        batch_rows: usize,
    ) -> Result<Option<usize>> {
        if self.prompt(lane, prompt)? != expected[0] {
            return Ok(Some(0));
        }
        let mut same = 1;
        for rows in expected[..expected.len() - 1].chunks(batch_rows) {
            let output = self.forward(lane, rows, Logits::Everywhere, &mut NoProbe)?;
            for i in 0..rows.len() {
                if greedy(lane, output.logits(i), prompt.len() + same - 1)? != expected[same] {
                    return Ok(Some(same));
                }
                same += 1;
            }
        }
        Ok(None)
    }

    /// Feeds a prompt to an empty sequence and returns the greedy choice after it.
    fn prompt(&mut self, lane: &mut Lane<B>, prompt: &[u32]) -> Result<u32> {
        lane.reset();
        let mut output = None;
        for rows in prompt.chunks(DEFAULT_BATCH) {
            output = Some(self.forward(lane, rows, Logits::Last, &mut NoProbe)?);
        }
        greedy(lane, output.expect("a prompt is not empty").logits(0), prompt.len() - 1)
    }

    fn forward(
        &mut self,
        lane: &mut Lane<B>,
        tokens: &[u32],
        logits: Logits,
        probe: &mut impl Probe,
    ) -> Result<Output> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(QualityError::Cancelled);
        }
        self.batch.clear();
        match logits {
            Logits::Nowhere => self.batch.extend(lane.sequence, tokens, Want::Nothing),
            Logits::Last => self.batch.extend(lane.sequence, tokens, Want::Logits),
            Logits::Everywhere => {
                tokens.iter().for_each(|&t| self.batch.push(lane.sequence, t, Want::Logits))
            }
        }
        let output = self.model.forward(&self.batch, &mut lane.cache, &mut self.workspace, probe)?;
        self.done += tokens.len();
        Ok(output)
    }

    fn tell(&mut self, total: usize) {
        (self.progress)(self.done.min(total), total);
    }
}

fn greedy<B: Backend>(lane: &Lane<B>, logits: &[f32], position: usize) -> Result<u32> {
    argmax(logits).ok_or_else(|| lane.not_finite(position))
}

/// `[f(0), f(1), ..., f(n - 1)]`, computed on several threads.
fn parallel<T: Send>(n: usize, threads: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let share = n.div_ceil(threads.max(1)).max(1);
    if share >= n {
        return (0..n).map(f).collect();
    }
    let f = &f;
    std::thread::scope(|scope| {
        let part =
            |begin: usize| scope.spawn(move || (begin..n.min(begin + share)).map(f).collect::<Vec<T>>());
        let parts: Vec<_> = (0..n).step_by(share).map(part).collect();
        parts.into_iter().flat_map(|part| part.join().expect("statistics do not panic")).collect()
    })
}

/// Keeps the attention outputs of one pass, layer by layer.
#[derive(Default)]
struct Recorder {
    layers: Vec<Vec<f32>>,
}

impl Probe for Recorder {
    fn wants(&self, point: Point) -> bool {
        matches!(point, Point::AttentionHeads(_))
    }

    fn values(&mut self, point: Point, _: usize, values: &[f32]) {
        if let Point::AttentionHeads(_) = point {
            self.layers.push(values.to_vec());
        }
    }

    fn choices(&mut self, _: Point, _: usize, _: &Choices) {}
}

/// Compares the attention outputs of a pass with recorded ones.
struct Comparer<'a> {
    reference: &'a Recorder,
    layers: &'a mut Vec<Similarity>,
}

impl Probe for Comparer<'_> {
    fn wants(&self, point: Point) -> bool {
        self.reference.wants(point)
    }

    fn values(&mut self, point: Point, cols: usize, values: &[f32]) {
        let Point::AttentionHeads(layer) = point else { return };
        self.layers.resize(self.layers.len().max(layer + 1), Similarity::default());
        let rows = self.reference.layers[layer].chunks_exact(cols).zip(values.chunks_exact(cols));
        rows.for_each(|(reference, candidate)| self.layers[layer].add(reference, candidate));
    }

    fn choices(&mut self, _: Point, _: usize, _: &Choices) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_keeps_the_order() {
        for (n, threads) in [(0, 1), (0, 4), (1, 4), (7, 2), (7, 3), (8, 100), (5, 0)] {
            assert_eq!(
                parallel(n, threads, |i| i * i),
                (0..n).map(|i| i * i).collect::<Vec<_>>(),
                "{n} {threads}"
            );
        }
    }

    #[test]
    fn layers_are_compared_with_their_own() {
        let mut recorder = Recorder::default();
        recorder.values(Point::AttentionHeads(0), 2, &[1.0, 0.0, 0.0, 1.0]);
        recorder.values(Point::AttentionHeads(1), 2, &[3.0, 4.0, 3.0, 4.0]);
        let mut layers = Vec::new();
        let mut comparer = Comparer { reference: &recorder, layers: &mut layers };
        comparer.values(Point::AttentionHeads(0), 2, &[0.0, 1.0, 0.0, 1.0]);
        comparer.values(Point::AttentionHeads(1), 2, &[3.0, 4.0, 6.0, 8.0]);
        let cosines: Vec<f64> = layers.iter().map(Similarity::cosine).collect();
        assert_eq!(cosines, [0.5, 1.0]);
        assert_eq!(layers[1].relative_l2(), 0.5f64.sqrt());
    }
}
