//! The backend: checks shapes, splits rows over the pool and enters the kernels.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lapidary_backend::{
    Attention, Backend, BackendError, Best, Choices, Columns, Dims, ExpertInput, HeadLayout, HeadNormRope,
    KvPoolSpec, MatrixData, Norm, Result, RowBatch,
};

use crate::activation::{Gated, Softcap, WeightedSum};
use crate::attention;
use crate::buffer::CpuBuffer;
use crate::embed::{embed_row, row_dots};
use crate::experts::{ByExpert, Route};
use crate::kv::CpuKvPool;
use crate::linear::{self, ActivationMode, Input, Isa, Linear, Output, Product, RowMap};
use crate::matrix::CpuMatrix;
use crate::norm::{AddNorm, RmsNorm};
use crate::parallel::for_rows;
use crate::pool::Pool;
use crate::rope::{self, HeadNorms};
use crate::screen::{self, Screen};

/// Longest attention head.
const MAX_HEAD_DIM: usize = 512;

/// What an element of an operation with an exponential costs, in elements that are only added or multiplied.
const EXP_COST: usize = 4;

/// How a [`CpuBackend`] runs.
#[derive(Clone, Copy, Debug)]
pub struct CpuConfig {
    /// Threads that compute together, the caller among them; at least 1.
    pub threads: usize,
    /// Whether activations are rounded to 8 bits before they meet quantised weights.
    pub activations: ActivationMode,
    /// Instruction set of the kernels.
    pub isa: Isa,
}

impl Default for CpuConfig {
    /// All of the machine's threads, rounded activations, the fastest instruction set of this machine.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads, activations: ActivationMode::default(), isa: Isa::detect() }
    }
}

/// The CPU as a device.
pub struct CpuBackend {
    config: CpuConfig,
    pool: Pool,
    /// Scratch of one matrix product at a time; callers on several threads wait for each other.
    products: Mutex<ProductWorkspace>,
    attention: Mutex<attention::Workspace>,
    screening: Mutex<screen::Workspace>,
}

#[derive(Default)]
struct ProductWorkspace {
    linear: linear::Workspace,
    by_expert: ByExpert,
}

/// Expert choices of the rows in flight.
#[derive(Debug, Default)]
pub struct CpuRouting {
    choices: Choices,
    top_k: usize,
    exps: Vec<f32>,
}

impl CpuBackend {
    /// Starts the worker threads.
    pub fn new(config: CpuConfig) -> Self {
        let pool = Pool::new(config.threads);
        Self {
            config,
            pool,
            products: Mutex::default(),
            attention: Mutex::default(),
            screening: Mutex::default(),
        }
    }

    /// Threads, activations and instruction set.
    pub fn config(&self) -> &CpuConfig {
        &self.config
    }

    /// Bytes a second that the threads read from memory together, measured.
    pub fn read_bandwidth(&self) -> f64 {
        crate::read_bandwidth(&self.pool)
    }

    fn linear(&self) -> Linear<'_> {
        Linear { pool: &self.pool, isa: self.config.isa, mode: self.config.activations }
    }

    fn products(&self) -> MutexGuard<'_, ProductWorkspace> {
        // The workspace is overwritten by every product, so a panic cannot leave it in a bad state.
        self.products.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The columns of one row.
fn row_of<'a>(columns: &Columns<'a, CpuBuffer>, row: usize, cols: usize) -> &'a [f32] {
    &columns.buffer[row * columns.stride + columns.offset..][..cols]
}

/// One entry a matrix of `matrices`, side by side in the output row; `matrix` is which of a stack.
fn products<'a>(
    matrices: &'a [&CpuMatrix],
    matrix: usize,
    rows: RowMap<'a>,
) -> impl Iterator<Item = Product<'a>> {
    matrices.iter().scan(0, move |column, m| {
        let out_col = *column;
        *column += m.data().rows;
        Some(Product { weights: m.weights(matrix), out_col, rows })
    })
}

impl Backend for CpuBackend {
    type Buffer = CpuBuffer;
    type Matrix = CpuMatrix;
    type Rows = RowBatch;
    type KvPool = CpuKvPool;
    type Routing = CpuRouting;

    fn name(&self) -> String {
        format!("cpu ({}, {} threads)", self.config.isa, self.pool.n_threads())
    }

    fn buffer(&self, len: usize) -> Result<CpuBuffer> {
        CpuBuffer::new(len)
    }

    fn upload(&self, data: &[f32], buffer: &mut CpuBuffer, offset: usize) -> Result<()> {
        buffer[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn download(&self, buffer: &CpuBuffer, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        out.copy_from_slice(&buffer[range]);
        Ok(())
    }

    fn matrix(&self, data: MatrixData) -> Result<CpuMatrix> {
        CpuMatrix::new(data)
    }

    fn upload_rows(&self, batch: &RowBatch, rows: &mut RowBatch) -> Result<()> {
        rows.clone_from(batch);
        Ok(())
    }

    fn kv_pool(&self, spec: KvPoolSpec) -> Result<CpuKvPool> {
        if spec.head_dim > MAX_HEAD_DIM || spec.head_dim == 0 || spec.block_len == 0 {
            return Err(BackendError::Unsupported {
                device: self.name(),
                what: format!(
                    "attention heads of {} elements in blocks of {} positions; heads have 1 to {MAX_HEAD_DIM}",
                    spec.head_dim, spec.block_len
                ),
            });
        }
        spec.check(&self.name())?;
        Ok(CpuKvPool::new(spec))
    }

    fn kv_reserve(&self, pool: &mut CpuKvPool, n_blocks: usize) -> Result<()> {
        pool.reserve(n_blocks)
    }

    fn kv_free(&self, pool: &mut CpuKvPool, blocks: &[u32]) -> Result<()> {
        pool.free(blocks);
        Ok(())
    }

    fn kv_copy(&self, pool: &mut CpuKvPool, cells: &[(u32, u32)]) -> Result<()> {
        pool.copy(cells)
    }

    fn kv_export(&self, pool: &CpuKvPool, block: u32, out: &mut Vec<u8>) -> Result<()> {
        out.extend_from_slice(pool.block(block));
        Ok(())
    }

    fn kv_import(&self, pool: &mut CpuKvPool, block: u32, bytes: &[u8]) -> Result<()> {
        pool.import(block, bytes)
    }

    fn kv_layout(&self) -> String {
        // Activations decide the numbers; instruction set and threads do not.
        format!("cpu-1 {:?}", self.config.activations)
    }

    fn embed(&self, table: &CpuMatrix, rows: &RowBatch, scale: f32, out: &mut CpuBuffer) -> Result<()> {
        let (n_rows, cols) = (rows.len(), table.data().cols);
        for_rows(&self.pool, out, (n_rows, cols), cols, |first, out| {
            for (&token, out) in rows.tokens[first..].iter().zip(out.chunks_exact_mut(cols)) {
                embed_row(table, token, scale, out);
            }
        });
        Ok(())
    }

    fn gather(&self, x: &CpuBuffer, rows: &[u32], cols: usize, out: &mut CpuBuffer) -> Result<()> {
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(cols)) {
            out.copy_from_slice(&x[row as usize * cols..][..cols]);
        }
        Ok(())
    }

    fn rms_norm(&self, x: &CpuBuffer, norm: Norm<CpuBuffer>, dims: Dims, out: &mut CpuBuffer) -> Result<()> {
        let Dims { rows, cols } = dims;
        let weight = norm.weight.map(|w| &w[..cols]);
        for_rows(&self.pool, out, (rows, cols), cols, |first, out| {
            let x = &x[first * cols..][..out.len()];
            self.config.isa.run(RmsNorm { x, cols, weight, eps: norm.eps, out });
        });
        Ok(())
    }

    fn linear(
        &self,
        x: &CpuBuffer,
        n_rows: usize,
        matrices: &[&CpuMatrix],
        out: &mut CpuBuffer,
        out_stride: usize,
    ) -> Result<()> {
        let Some(first) = matrices.first() else { return Ok(()) };
        let cols = first.data().cols;
        let products: Vec<Product> = products(matrices, 0, RowMap::Identity(n_rows)).collect();
        let input = Input { x: &x[..n_rows * cols], n_rows, cols };
        let out = Output { data: out, stride: out_stride };
        self.linear().run(&products, input, out, &mut self.products().linear);
        Ok(())
    }

    fn row_dots(&self, x: &CpuBuffer, row: usize, matrix: &CpuMatrix, ids: &[u32]) -> Result<Vec<f32>> {
        let cols = matrix.data().cols;
        Ok(row_dots(&x[row * cols..][..cols], matrix, ids))
    }

    fn screen_bytes(&self, matrix: &CpuMatrix) -> Option<usize> {
        Screen::bytes_for(matrix)
    }

    fn screen(&self, matrix: &CpuMatrix, importance: &[f32]) -> Result<bool> {
        let make = || Screen::new(&self.pool, self.config.isa.level(), matrix, importance);
        Ok(matrix.screen_or(make).is_some())
    }

    fn best(
        &self,
        x: &CpuBuffer,
        row: usize,
        matrix: &CpuMatrix,
        k: usize,
        softcap: Option<f32>,
    ) -> Result<Option<Best>> {
        let Some(screen) = matrix.screen() else { return Ok(None) };
        let cols = matrix.data().cols;
        let x = &x[row * cols..][..cols];
        // As with products: what a panic leaves is overwritten.
        let mut workspace = self.screening.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(screen.best(&self.linear(), matrix, x, k, softcap, &mut workspace))
    }

    fn rope_table(&self, rows: &RowBatch, frequencies: &CpuBuffer, out: &mut CpuBuffer) -> Result<()> {
        /// A cosine and a sine take as long as some dozen additions.
        const COST: usize = 32;
        let cols = 2 * frequencies.len();
        for_rows(&self.pool, out, (rows.len(), cols), COST * cols, |first, out| {
            for (&position, out) in rows.positions[first..].iter().zip(out.chunks_exact_mut(cols)) {
                rope::table_row(position, frequencies, out);
            }
        });
        Ok(())
    }

    fn head_norm_rope(
        &self,
        qkv: &mut CpuBuffer,
        n_rows: usize,
        heads: &HeadNormRope<CpuBuffer>,
    ) -> Result<()> {
        let layout = heads.layout;
        let kv = heads.kv.as_ref().map(|kv| (&kv.k_norm[..layout.head_dim], kv.value));
        let stride = layout.stride();
        for_rows(&self.pool, qkv, (n_rows, stride), stride, |first, rows| {
            let tables = &heads.rope[first * layout.head_dim..];
            let q_norm = &heads.q_norm[..layout.head_dim];
            self.config.isa.run(HeadNorms { rows, layout, q_norm, kv, tables, eps: heads.eps });
        });
        Ok(())
    }

    fn kv_store(
        &self,
        qkv: &CpuBuffer,
        layout: HeadLayout,
        rows: &RowBatch,
        group: usize,
        pool: &mut CpuKvPool,
        layer: usize,
    ) -> Result<()> {
        let cells = (rows.groups[group].store.as_slice(), rows.positions.as_slice());
        pool.store(self.config.isa, qkv, layout, cells, layer)
    }

    fn attention(
        &self,
        qkv: &CpuBuffer,
        attention: &Attention,
        rows: &RowBatch,
        pool: &CpuKvPool,
        out: &mut CpuBuffer,
    ) -> Result<()> {
        let group = &rows.groups[attention.group];
        let job = attention::Job { qkv, attention, positions: &rows.positions, group, cache: pool };
        let mut workspace = self.attention.lock().unwrap_or_else(PoisonError::into_inner);
        attention::attend(self.config.isa, &self.pool, &job, &mut workspace, out);
        Ok(())
    }

    fn gated_activation(
        &self,
        gate: Columns<CpuBuffer>,
        up: Columns<CpuBuffer>,
        dims: Dims,
        out: &mut CpuBuffer,
    ) -> Result<()> {
        let Dims { rows, cols } = dims;
        for_rows(&self.pool, out, (rows, cols), EXP_COST * cols, |first, out| {
            for (row, out) in out.chunks_exact_mut(cols).enumerate() {
                let (gate, up) = (row_of(&gate, first + row, cols), row_of(&up, first + row, cols));
                self.config.isa.run(Gated { gate, up, out });
            }
        });
        Ok(())
    }

    fn add_norm(
        &self,
        x: &mut CpuBuffer,
        y: &CpuBuffer,
        norm: Norm<CpuBuffer>,
        scale: Option<&CpuBuffer>,
        dims: Dims,
    ) -> Result<()> {
        let Dims { rows, cols } = dims;
        let weight = norm.weight.map(|w| &w[..cols]);
        let scale = scale.map(|s| &s[..]);
        for_rows(&self.pool, x, (rows, cols), cols, |first, x| {
            let y = &y[first * cols..][..x.len()];
            self.config.isa.run(AddNorm { x, y, cols, weight, eps: norm.eps, scale });
        });
        Ok(())
    }

    fn route(
        &self,
        scores: &CpuBuffer,
        dims: Dims,
        top_k: usize,
        expert_scale: Option<&CpuBuffer>,
        routing: &mut CpuRouting,
    ) -> Result<()> {
        let n_experts = dims.cols;
        let CpuRouting { choices: Choices { experts, weights }, exps, .. } = routing;
        experts.resize(dims.rows * top_k, 0);
        weights.resize(dims.rows * top_k, 0.0);
        exps.resize(n_experts, 0.0);
        let scores = &scores[..dims.rows * n_experts];
        let expert_scale = expert_scale.map(|s| &s[..n_experts]);
        self.config.isa.run(Route { scores, n_experts, expert_scale, experts, weights, top_k, exps });
        routing.top_k = top_k;
        Ok(())
    }

    fn choices(&self, routing: &CpuRouting) -> Result<Choices> {
        Ok(routing.choices.clone())
    }

    fn expert_linear(
        &self,
        x: &CpuBuffer,
        input: ExpertInput,
        routing: &CpuRouting,
        matrices: &[&CpuMatrix],
        out: &mut CpuBuffer,
        out_stride: usize,
    ) -> Result<()> {
        let experts = &routing.choices.experts;
        let (Some(first), false) = (matrices.first(), experts.is_empty()) else { return Ok(()) };
        let mut workspace = self.products();
        let ProductWorkspace { linear, by_expert } = &mut *workspace;
        let n_rows = match input {
            ExpertInput::PerRow => {
                by_expert.group(experts, |choice| choice / routing.top_k);
                experts.len() / routing.top_k
            }
            ExpertInput::PerChoice => {
                by_expert.group(experts, |choice| choice);
                experts.len()
            }
        };
        let products: Vec<Product> = by_expert
            .iter()
            .flat_map(|(expert, pairs)| products(matrices, expert as usize, RowMap::Pairs(pairs)))
            .collect();
        let cols = first.data().cols;
        let input = Input { x: &x[..n_rows * cols], n_rows, cols };
        self.linear().run(&products, input, Output { data: out, stride: out_stride }, linear);
        Ok(())
    }

    fn combine(&self, y: &CpuBuffer, routing: &CpuRouting, cols: usize, out: &mut CpuBuffer) -> Result<()> {
        let (weights, top_k) = (&routing.choices.weights, routing.top_k.max(1));
        let n_rows = weights.len() / top_k;
        for_rows(&self.pool, out, (n_rows, cols), top_k * cols, |first, out| {
            for (row, out) in out.chunks_exact_mut(cols).enumerate() {
                let choices = (first + row) * top_k..(first + row + 1) * top_k;
                let rows = &y[choices.start * cols..choices.end * cols];
                self.config.isa.run(WeightedSum { weights: &weights[choices], rows, out });
            }
        });
        Ok(())
    }

    fn softcap(&self, x: &mut CpuBuffer, cap: f32, len: usize) -> Result<()> {
        /// Elements of a part that a thread takes.
        const PART: usize = 4096;
        let n_whole = len / PART;
        for_rows(&self.pool, x, (n_whole, PART), EXP_COST * PART, |_, x| {
            self.config.isa.run(Softcap { x, cap });
        });
        self.config.isa.run(Softcap { x: &mut x[n_whole * PART..len], cap });
        Ok(())
    }
}
