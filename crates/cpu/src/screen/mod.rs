//! A coarse copy of a matrix that finds the rows with the largest products without reading the whole matrix.
//!
//! A decode step of a small model spends most of its time on the output matrix, and all that a greedy choice or a
//! top-k filter needs of it are the few largest logits. The coarse copy holds each row in about 5 bits a column
//! ([`layout`]) with the norms of what it leaves out, which bound every exact product from above:
//!
//! ```text
//! w x = c y + c (x - y) + (w - c) x
//!     <= c y + sum over parts   |c_part| |x_part - y_part|
//!            + sum over segments |(w - c)_segment| |x_segment|  + rounding errors
//! ```
//!
//! with a row `w` and its coarse form `c`, the activations `x` as the exact product sees them and their own rounding
//! `y`, by the inequality of Cauchy and Schwarz on each segment of columns. One pass over the coarse copy gives all
//! bounds ([`Query`]). The exact products of the rows with the highest bounds give a threshold, the k-th largest of
//! them; every row whose bound reaches it is computed exactly too, by the kernels of [`linear`](crate::linear) on the
//! stored bytes. So the k largest products come out, ties included, with the bits that the whole product has.
//!
//! Activations of a language model have most of their energy in few columns. Those are stored first and in 8 bits,
//! which is what makes the bounds tight: with the columns in any other order some hundred times as many rows must be
//! computed. The order affects the speed only.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod layout;
mod portable;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use lapidary_backend::Best;
use lapidary_gguf::GgmlType;

use crate::activation::Softcap;
use crate::linear::isa::Level;
use crate::linear::{Input, Linear, Output, Product, RowMap, WeightMatrix, Workspace as LinearWorkspace};
use crate::matrix::CpuMatrix;
use crate::parallel::{Disjoint, for_rows};
use crate::pool::Pool;
use layout::{BLOCK, Layout, TILE};

/// Tiles of a task, and of the rows whose greatest bound is kept.
const CHUNK_TILES: usize = 64;
/// Rows of a chunk.
const CHUNK: usize = CHUNK_TILES * TILE;
/// The share of the rows above which exact products one by one cost more than the whole matrix.
const MOST: usize = 16;

/// The coarse copy of one matrix.
#[derive(Debug)]
pub(crate) struct Screen {
    layout: Layout,
    rows: usize,
    /// Tiles of eight rows, one after the other.
    tiles: Vec<Line>,
}

/// The unit of allocation, so that tiles are aligned to 16 bytes.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(16))]
struct Line([u8; 16]);

/// Memory that screened products reuse.
#[derive(Default)]
pub(crate) struct Workspace {
    linear: LinearWorkspace,
    exact: Vec<f32>,
    query: Query,
    bounds: Vec<f32>,
    /// The greatest bound of each chunk of rows.
    maxima: Vec<f32>,
    /// Stored rows that are computed exactly, side by side.
    picked: Vec<u8>,
    values: Vec<f32>,
}

/// A row of activations, rounded for the coarse copy, and the factors of its error bounds.
#[derive(Default)]
struct Query {
    /// One code a column, in the order of the layout.
    codes: Vec<i8>,
    /// One scale a block.
    scales: Vec<f32>,
    /// Eight times the sum of a block's codes: what the offset of 4-bit codes adds to their product.
    offsets: Vec<i32>,
    /// Norms of the activations in each segment.
    segments: Vec<f32>,
    /// Of the 8-bit columns and of the others: the norm of the rounding error, with all errors of float arithmetic.
    parts: [f32; 2],
}

impl Screen {
    /// Bytes of a coarse copy of `matrix`; `None` when there can be none: its columns are no multiple of 32 or too
    /// few, or its type has minimums, for which the error of the exact product has no bound in norms.
    pub(crate) fn bytes_for(matrix: &CpuMatrix) -> Option<usize> {
        use GgmlType::{BF16, F16, F32, Q4_0, Q5_0, Q6_K, Q8_0};
        let data = matrix.data();
        let symmetric = matches!(data.ty, F32 | F16 | BF16 | Q4_0 | Q5_0 | Q6_K | Q8_0);
        if !symmetric || data.stack != 1 {
            return None;
        }
        Some(Layout::tile_bytes_for(data.cols)? * data.rows.div_ceil(TILE))
    }

    /// Copies `matrix`, with the columns of greatest `importance` first; `None` when it cannot be, also because a
    /// weight is not finite or beyond the range of the scales.
    pub(crate) fn new(pool: &Pool, level: Level, matrix: &CpuMatrix, importance: &[f32]) -> Option<Self> {
        let bytes = Self::bytes_for(matrix)?;
        let (rows, cols) = (matrix.data().rows, matrix.data().cols);
        let layout = Layout::new(cols, importance)?;
        let mut tiles = vec![Line([0; 16]); bytes / size_of::<Line>()];
        let tile_bytes = layout.tile_bytes();
        let finite = std::sync::atomic::AtomicBool::new(true);
        let out = Disjoint::new(bytemuck::cast_slice_mut::<Line, u8>(&mut tiles));
        let n_tiles = rows.div_ceil(TILE);
        pool.run(n_tiles.div_ceil(CHUNK_TILES), |chunk, _thread| {
            let first = chunk * CHUNK_TILES;
            let n = CHUNK_TILES.min(n_tiles - first);
            // SAFETY: every tile belongs to one chunk.
            let out = unsafe { out.range(first * tile_bytes, n * tile_bytes) };
            if !layout.encode(level, matrix, first, out) {
                finite.store(false, std::sync::atomic::Ordering::Relaxed);
            }
        });
        finite.into_inner().then_some(Self { layout, rows, tiles })
    }

    /// Every row of `matrix`, whose copy this is, whose product with `x` is among the `k` largest, and some others.
    /// `softcap`, where given, is applied to the products, and counts in what is largest. `None` when the bounds do
    /// not tell the rows apart well enough, or something is not finite.
    pub(crate) fn best(
        &self,
        linear: &Linear,
        matrix: &CpuMatrix,
        x: &[f32],
        k: usize,
        softcap: Option<f32>,
        workspace: &mut Workspace,
    ) -> Option<Best> {
        let most = self.rows / MOST;
        // More rows than asked for at first: the k-th largest of them is a better threshold.
        let first = 2 * k + 14;
        if k == 0
            || first > most
            || !linear.seen_by(matrix.data().ty, x, &mut workspace.exact, &mut workspace.linear)
        {
            return None;
        }
        workspace.query.prepare(&self.layout, &workspace.exact)?;
        self.bounds(linear, workspace);

        let mut ids = largest(&workspace.bounds, &workspace.maxima, first);
        products(linear, matrix, x, &ids, workspace);
        let mut exact = workspace.values.clone();
        exact.sort_unstable_by(|a, b| b.total_cmp(a));
        let threshold = below_in_rank(exact[k - 1], softcap);
        if !threshold.is_finite() {
            return None;
        }
        let mut values = workspace.values.clone();
        let mut known = ids.clone();
        known.sort_unstable();
        let rest = reaching(&workspace.bounds, &workspace.maxima, threshold, &known, most)?;
        products(linear, matrix, x, &rest, workspace);
        ids.extend(rest);
        values.extend_from_slice(&workspace.values);

        if let Some(cap) = softcap {
            linear.isa.run(Softcap { x: &mut values, cap });
        }
        let mut pairs: Vec<(u32, f32)> = ids.into_iter().zip(values).collect();
        pairs.sort_unstable_by_key(|&(id, _)| id);
        let (ids, values) = pairs.into_iter().unzip();
        Some(Best { ids, values })
    }

    /// An upper bound of every row's product, and the greatest of each chunk.
    fn bounds(&self, linear: &Linear, workspace: &mut Workspace) {
        let Workspace { query, bounds, maxima, .. } = workspace;
        let tile_bytes = self.layout.tile_bytes();
        let bytes: &[u8] = bytemuck::cast_slice(&self.tiles);
        let n_tiles = self.rows.div_ceil(TILE);
        let n_chunks = n_tiles.div_ceil(CHUNK_TILES);
        bounds.resize(n_tiles * TILE, 0.0);
        maxima.resize(n_chunks, 0.0);
        let (out, out_maxima) = (Disjoint::new(bounds), Disjoint::new(maxima));
        linear.pool.run(n_chunks, |chunk, _thread| {
            let first = chunk * CHUNK_TILES;
            let n = CHUNK_TILES.min(n_tiles - first);
            let tiles = &bytes[first * tile_bytes..][..n * tile_bytes];
            // SAFETY: every tile and every maximum belongs to one chunk.
            let (out, maximum) = unsafe { (out.range(first * TILE, n * TILE), out_maxima.range(chunk, 1)) };
            match linear.isa.level() {
                Level::Portable => portable::bounds(&self.layout, query, tiles, out),
                // SAFETY: an `Isa` of these levels is only made where the machine has AVX2, FMA and F16C.
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 | Level::Avx512 => unsafe { avx2::bounds(&self.layout, query, tiles, out) },
            }
            // Rows that fill up the last tile are no rows.
            let real = (self.rows - first * TILE).min(out.len());
            out[real..].fill(f32::NEG_INFINITY);
            maximum[0] = out.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        });
    }
}

impl Query {
    /// Rounds `x`; `None` when a norm is not finite, or all numbers are next to nothing.
    fn prepare(&mut self, layout: &Layout, x: &[f32]) -> Option<()> {
        /// Covers the rounding of the norms and of the bound's own sum.
        const UP: f64 = 1.0 + 1e-5;
        let n_blocks = layout.order.len() / BLOCK;
        self.codes.resize(layout.order.len(), 0);
        self.scales.resize(n_blocks, 0.0);
        self.offsets.resize(n_blocks, 0);
        let (mut squares, mut error_squares) = (vec![0.0; n_blocks], vec![0.0; n_blocks]);
        for b in 0..n_blocks {
            let columns = &layout.order[b * BLOCK..][..BLOCK];
            let values: [f32; BLOCK] = std::array::from_fn(|i| x[columns[i] as usize]);
            let amax = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let scale = amax / 127.0;
            let inverse = if scale > f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
            let codes = &mut self.codes[b * BLOCK..][..BLOCK];
            for (code, v) in codes.iter_mut().zip(values) {
                *code = (v * inverse).round_ties_even() as i8;
                let error = f64::from(v) - f64::from(scale) * f64::from(*code);
                squares[b] += f64::from(v) * f64::from(v);
                error_squares[b] += error * error;
            }
            self.scales[b] = scale;
            self.offsets[b] = 8 * codes.iter().map(|&c| i32::from(c)).sum::<i32>();
        }
        let norm = |squares: &[f64]| squares.iter().sum::<f64>().sqrt() * UP;
        self.segments.clear();
        let mut begin = 0;
        for &end in &layout.segments {
            self.segments.push(norm(&squares[begin..end]) as f32);
            begin = end;
        }
        // Relative to the norms of both factors: an exact product rounds once or twice a block or sixteen columns, the
        // coarse one three times a block.
        let rounding = (layout.order.len() as f64 / 8.0 + 64.0) * f64::from(f32::EPSILON) * norm(&squares);
        self.parts = [
            (norm(&error_squares[..layout.wide]) + rounding) as f32,
            (norm(&error_squares[layout.wide..]) + rounding) as f32,
        ];
        // With all numbers far from the least ones, none of the bounds' terms vanishes.
        let finite = self.segments.iter().chain(&self.parts).all(|v| v.is_finite());
        (finite && norm(&squares) > 1e-12).then_some(())
    }
}

/// A number so far below `value` that what is smaller still is smaller after the softcap as well.
fn below_in_rank(value: f32, softcap: Option<f32>) -> f32 {
    /// More than the error of the softcap's `tanh` on either side.
    const MARGIN: f64 = 1.0 / (1 << 18) as f64;
    match softcap.map(f64::from) {
        None => value,
        Some(cap) => ((cap * ((f64::from(value) / cap).tanh() - MARGIN).atanh()) as f32).next_down(),
    }
}

/// A bound and its row; the heap's top is the smallest.
#[derive(PartialEq)]
struct Smallest(f32, u32);

impl Eq for Smallest {}

impl PartialOrd for Smallest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Smallest {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.total_cmp(&self.0).then(other.1.cmp(&self.1))
    }
}

/// The `n` rows of the largest bounds.
fn largest(bounds: &[f32], maxima: &[f32], n: usize) -> Vec<u32> {
    let mut chunks: Vec<usize> = (0..maxima.len()).collect();
    chunks.sort_unstable_by(|&a, &b| maxima[b].total_cmp(&maxima[a]));
    let mut heap = BinaryHeap::with_capacity(n + 1);
    let mut least = f32::NEG_INFINITY;
    for chunk in chunks {
        if heap.len() == n && maxima[chunk] <= least {
            break;
        }
        let first = chunk * CHUNK;
        for (i, &bound) in bounds[first..].iter().take(CHUNK).enumerate() {
            if bound > least {
                heap.push(Smallest(bound, (first + i) as u32));
                if heap.len() > n {
                    heap.pop();
                }
                if heap.len() == n {
                    least = heap.peek().map_or(least, |s| s.0);
                }
            }
        }
    }
    heap.into_iter().map(|s| s.1).collect()
}

/// The rows whose bound reaches `threshold`, without those `known`, which ascend; `None` when they are more than `most`.
fn reaching(bounds: &[f32], maxima: &[f32], threshold: f32, known: &[u32], most: usize) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for (chunk, _) in maxima.iter().enumerate().filter(|(_, m)| **m >= threshold) {
        let first = chunk * CHUNK;
        for (i, &bound) in bounds[first..].iter().take(CHUNK).enumerate() {
            let id = (first + i) as u32;
            if bound >= threshold && known.binary_search(&id).is_err() {
                found.push(id);
            }
        }
        if found.len() > most {
            return None;
        }
    }
    Some(found)
}

/// Exact products of `x` with rows `ids` of `matrix`, into the workspace's values.
fn products(linear: &Linear, matrix: &CpuMatrix, x: &[f32], ids: &[u32], workspace: &mut Workspace) {
    let Workspace { linear: scratch, picked, values, .. } = workspace;
    let (ty, cols) = (matrix.data().ty, matrix.data().cols);
    values.clear();
    values.resize(ids.len(), 0.0);
    if ids.is_empty() {
        return;
    }
    let row_bytes = matrix.row_bytes(ids[0] as usize).len();
    picked.resize(ids.len() * row_bytes, 0);
    for_rows(linear.pool, picked, (ids.len(), row_bytes), row_bytes, |first, rows| {
        for (row, &id) in rows.chunks_exact_mut(row_bytes).zip(&ids[first..]) {
            row.copy_from_slice(matrix.row_bytes(id as usize));
        }
    });
    let weights = WeightMatrix::new(ty, ids.len(), cols, picked).expect("whole rows of a matrix");
    let product = Product { weights, out_col: 0, rows: RowMap::Identity(1) };
    let out = Output { data: values, stride: ids.len() };
    linear.run(&[product], Input { x, n_rows: 1, cols }, out, scratch);
}
