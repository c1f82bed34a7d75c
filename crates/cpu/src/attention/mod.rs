//! Grouped-query attention over cached keys and values.
//!
//! # Order of arithmetic
//!
//! The positions that a row sees are cut where the absolute position is a multiple of [`TILE`] and of [`SPAN`].
//! Within a span, tiles are taken in ascending order with an online softmax; the spans' results `(maximum, sum,
//! accumulator)` are then merged in ascending order. Scores are dot products in sixteen partial sums (lane =
//! element mod 16, fused multiply-add, folded in halves), sums of weights have one partial sum for each position
//! mod 16, and every element of an accumulator is a chain of fused multiply-adds over ascending positions.
//!
//! Compressed vectors are never expanded in memory. The query is rotated once as the keys are; a score is the sum over
//! the blocks of a key of scale times the dot product with the levels, and for keys with offsets the offsets times the
//! sums of the query's blocks. Weights are multiplied by the scales of the values before they meet the levels; offsets
//! have one accumulator for each position mod 16 and are added at the end, where the rotation is undone. All of this depends on the row's positions alone: not on the block size, the other rows of the batch, the number of
//! threads or the instruction set, which only decide what is computed side by side.

mod merge;
mod plan;
mod product;
mod softmax;
mod span;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use lapidary_backend::{Attention, GroupRows};

use crate::kv::{CpuKvPool, Part};
use crate::linear::isa::Isa;
use crate::parallel::Disjoint;
use crate::pool::Pool;
use crate::simd::{Chunk, LANES};

use plan::Plan;
use span::{Item, Scratch, Sink};

/// Positions of a tile: the step of the online softmax.
const TILE: usize = 32;

/// Positions of a span: the unit of work that may run on its own thread.
const SPAN: usize = 256;

/// An attention call.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    /// Rows of query, key and value heads.
    pub(crate) qkv: &'a [f32],
    pub(crate) attention: &'a Attention,
    /// Position of each row.
    pub(crate) positions: &'a [u32],
    /// Where the rows' positions lie in the cache.
    pub(crate) group: &'a GroupRows,
    pub(crate) cache: &'a CpuKvPool,
}

impl Job<'_> {
    /// Query heads that share a key/value head.
    fn heads_per_kv(&self) -> usize {
        self.attention.layout.heads / self.attention.layout.kv_heads
    }

    /// Chunks of a padded head.
    fn chunks(&self) -> usize {
        self.cache.padded_dim() / LANES
    }

    /// How accumulators are laid out.
    fn value_form(&self) -> ValueForm {
        let (cache, format) = (self.cache, self.cache.format(Part::Values));
        let block_chunks = cache.block_chunks(Part::Values);
        let offsets = if format.has_offsets() { self.chunks() / block_chunks } else { 0 };
        let rotated = format.turbo_bits().is_some();
        ValueForm { chunks: self.chunks(), block_chunks, offsets, rotated }
    }

    /// Positions that row `row` sees.
    fn visible(&self, row: usize) -> Range<usize> {
        let end = self.positions[row] as usize + 1;
        self.attention.window.map_or(0, |window| end.saturating_sub(window))..end
    }

    /// Where the output of a query head of a row begins.
    fn output_offset(&self, row: usize, head: usize) -> usize {
        (row * self.attention.layout.heads + head) * self.attention.layout.head_dim
    }
}

/// The accumulator of a query: the chunks of a padded value, then one chunk of offsets a block where values have
/// them.
#[derive(Clone, Copy)]
pub(crate) struct ValueForm {
    chunks: usize,
    /// Chunks of a block.
    block_chunks: usize,
    /// Blocks with offsets.
    offsets: usize,
    /// Whether values are stored rotated.
    rotated: bool,
}

impl ValueForm {
    /// Chunks of an accumulator.
    fn acc_chunks(&self) -> usize {
        self.chunks + self.offsets
    }
}

/// Memory kept between calls.
#[derive(Default)]
pub(crate) struct Workspace {
    plan: Plan,
    partials: Vec<Chunk>,
    threads: Vec<Mutex<Scratch>>,
}

/// Computes `job` into `out`, `[rows, heads * head_dim]`.
pub(crate) fn attend(isa: Isa, pool: &Pool, job: &Job, workspace: &mut Workspace, out: &mut [f32]) {
    let Workspace { plan, partials, threads } = workspace;
    plan.make(job, pool.n_threads());
    threads.resize_with(pool.n_threads().max(threads.len()), Mutex::default);
    let out = Disjoint::new(out);
    let plan = &*plan;
    let work = |index: usize, thread: usize, partials: &Disjoint<Chunk>| {
        let item = &plan.items[index];
        let tile = &plan.tiles[item.tile];
        let mut scratch = threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
        let sink = match item.partials {
            None => Sink::Output(&out),
            // SAFETY: the plan gives every item its own part.
            Some(at) => Sink::Partials(unsafe { partials.range(at, plan::partial_chunks(tile, job)) }),
        };
        let (kv_head, spans) = (item.kv_head, item.spans.clone());
        Item { isa, job, tile, kv_head, spans }.run(&mut scratch, sink);
    };
    if partials.len() < plan.n_partial_chunks {
        partials.resize(plan.n_partial_chunks, [0.0; LANES]);
    }
    let shared = Disjoint::new(partials);
    if plan.parallel {
        pool.run(plan.items.len(), |index, thread| work(index, thread, &shared));
    } else {
        (0..plan.items.len()).for_each(|index| work(index, 0, &shared));
    }
    if plan.n_partial_chunks > 0 {
        merge_spans(isa, pool, job, plan, partials, &out);
    }
}

/// Merges the spans of every query head of every row.
fn merge_spans(isa: Isa, pool: &Pool, job: &Job, plan: &Plan, partials: &[Chunk], out: &Disjoint<f32>) {
    /// Chunks below which one thread merges faster than several.
    const FORK_ABOVE: usize = 2048;
    let (layout, form) = (job.attention.layout, job.value_form());
    let merge = |index: usize, _thread: usize| {
        let (row, head) = (index / layout.heads, index % layout.heads);
        let partials = plan.query_partials(job, row, head, partials);
        // SAFETY: every query head of every row is merged once.
        let out = unsafe { out.range(job.output_offset(row, head), layout.head_dim) };
        isa.run(merge::MergeAll { form, partials, out });
    };
    let n_queries = job.positions.len() * layout.heads;
    if plan.n_partial_chunks > FORK_ABOVE {
        pool.run(n_queries, merge);
    } else {
        (0..n_queries).for_each(|index| merge(index, 0));
    }
}
