//! Cutting an attention call into work items. Results do not depend on the cut.

use std::ops::Range;

use crate::simd::Chunk;

use super::{Job, SPAN};

/// Floats of queries that a work item holds: what fits beside a few keys in the first-level cache.
const QUERY_FLOATS: usize = 8 * 1024;

/// Multiply-adds below which waking the pool takes longer than the work.
const FORK_ABOVE: usize = 96 * 1024;

/// Chunks of partial results beyond which spans are not split (64 MiB).
const MAX_PARTIALS: usize = 1 << 20;

/// Consecutive rows that address their cache through the same block table.
#[derive(Debug)]
pub(super) struct RowTile {
    pub(super) first: usize,
    pub(super) n: usize,
    /// Positions below this one lie in the same cells for all rows.
    pub(super) common: usize,
    /// What the rows see between them.
    pub(super) visible: Range<usize>,
    /// Where the tile's partial results begin.
    partials: usize,
}

impl RowTile {
    /// The spans that the rows see.
    pub(super) fn spans(&self) -> Range<usize> {
        self.visible.start / SPAN..self.visible.end.div_ceil(SPAN)
    }
}

/// A unit of work: some spans of one key/value head for the rows of a tile.
#[derive(Debug)]
pub(super) struct WorkItem {
    pub(super) tile: usize,
    pub(super) kv_head: usize,
    pub(super) spans: Range<usize>,
    /// Where the partial result goes; absent when the item holds all spans and finishes the output.
    pub(super) partials: Option<usize>,
}

/// How an attention call is cut.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) tiles: Vec<RowTile>,
    pub(super) items: Vec<WorkItem>,
    /// Chunks that the partial results of all items take; 0 when no spans are split.
    pub(super) n_partial_chunks: usize,
    /// Whether the work is worth waking the pool.
    pub(super) parallel: bool,
}

impl Plan {
    /// Plans `job` for `n_threads` threads.
    pub(super) fn make(&mut self, job: &Job, n_threads: usize) {
        self.make_tiles(job, rows_per_tile(job, n_threads));
        let kv_heads = job.attention.layout.kv_heads;
        let positions: usize = self.tiles.iter().map(|t| t.n * t.visible.len()).sum();
        let work = 2 * positions * job.attention.layout.heads * job.cache.padded_dim();
        self.parallel = n_threads > 1 && work > FORK_ABOVE;
        let n_spans: usize = self.tiles.iter().map(|t| t.spans().len()).sum();
        let few_items = self.tiles.len() * kv_heads < 2 * n_threads && n_spans > self.tiles.len();
        self.n_partial_chunks = 0;
        if self.parallel && few_items {
            for tile in &mut self.tiles {
                tile.partials = self.n_partial_chunks;
                self.n_partial_chunks += kv_heads * tile.spans().len() * partial_chunks(tile, job);
            }
        }
        if self.n_partial_chunks > MAX_PARTIALS {
            self.n_partial_chunks = 0;
        }
        self.make_items(job, kv_heads);
    }

    fn make_tiles(&mut self, job: &Job, max_rows: usize) {
        self.tiles.clear();
        for (row, view) in job.group.views.iter().enumerate() {
            let (visible, shared) = (job.visible(row), view.shared as usize);
            if let Some(tile) = self.tiles.last_mut() {
                let first = &job.group.views[tile.first];
                if tile.n < max_rows && first.table == view.table && first.first_block == view.first_block {
                    tile.n += 1;
                    tile.common = tile.common.min(shared);
                    tile.visible.start = tile.visible.start.min(visible.start);
                    tile.visible.end = tile.visible.end.max(visible.end);
                    continue;
                }
            }
            self.tiles.push(RowTile { first: row, n: 1, common: shared, visible, partials: 0 });
        }
    }

    fn make_items(&mut self, job: &Job, kv_heads: usize) {
        self.items.clear();
        // Later rows of a prompt see more: they go first, so that the threads end together.
        for (t, tile) in self.tiles.iter().enumerate().rev() {
            for kv_head in 0..kv_heads {
                if self.n_partial_chunks == 0 {
                    self.items.push(WorkItem { tile: t, kv_head, spans: tile.spans(), partials: None });
                    continue;
                }
                for span in tile.spans() {
                    let partials = Some(self.partials_at(tile, kv_head, span, job));
                    self.items.push(WorkItem { tile: t, kv_head, spans: span..span + 1, partials });
                }
            }
        }
    }

    /// Where the partial results of a span begin.
    fn partials_at(&self, tile: &RowTile, kv_head: usize, span: usize, job: &Job) -> usize {
        let index = kv_head * tile.spans().len() + span - tile.spans().start;
        tile.partials + index * partial_chunks(tile, job)
    }

    /// The partial results of one query head of a row: how many spans the row sees, and the chunks from the first
    /// one on, [`partial_chunks`] of its tile apart.
    pub(super) fn query_partials<'p>(
        &self,
        job: &Job,
        row: usize,
        head: usize,
        partials: &'p [Chunk],
    ) -> QueryPartials<'p> {
        let tile = self.tiles.iter().find(|t| row < t.first + t.n).expect("every row is in a tile");
        let visible = job.visible(row);
        let spans = visible.start / SPAN..visible.end.div_ceil(SPAN);
        let heads_per_kv = job.heads_per_kv();
        let query = (row - tile.first) * heads_per_kv + head % heads_per_kv;
        let at = self.partials_at(tile, head / heads_per_kv, spans.start, job)
            + query * (job.value_form().acc_chunks() + 1);
        QueryPartials { n_spans: spans.len(), chunks: &partials[at..], stride: partial_chunks(tile, job) }
    }
}

/// The partial results of one query, spans in ascending order.
pub(super) struct QueryPartials<'a> {
    pub(super) n_spans: usize,
    /// A header chunk (maximum, sum) and the accumulator of the first span; the next ones follow at `stride`.
    pub(super) chunks: &'a [Chunk],
    pub(super) stride: usize,
}

/// Chunks of a span's partial result: for each query of the tile a header and the accumulator.
pub(super) fn partial_chunks(tile: &RowTile, job: &Job) -> usize {
    tile.n * job.heads_per_kv() * (job.value_form().acc_chunks() + 1)
}

/// Rows of a tile: as many as share loads of keys and values well, fewer when threads would go idle.
fn rows_per_tile(job: &Job, n_threads: usize) -> usize {
    let (heads_per_kv, kv_heads) = (job.heads_per_kv(), job.attention.layout.kv_heads);
    let most = (QUERY_FLOATS / (job.cache.padded_dim() * heads_per_kv)).max(1);
    let n_rows = job.positions.len();
    let deepest = (0..n_rows).map(|row| job.visible(row).len()).max().unwrap_or(0);
    if n_threads == 1 || deepest / SPAN * kv_heads >= 4 * n_threads {
        return most;
    }
    let fewest = (8 / heads_per_kv).clamp(1, most);
    (n_rows * kv_heads / (4 * n_threads)).clamp(fewest, most)
}
