//! The backend: checks shapes and enqueues kernels.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lapidary_backend::kv::levels::levels;
use lapidary_backend::kv::rotation;
use lapidary_backend::{
    Attention, Backend, BackendError, Choices, Columns, Dims, ExpertInput, HeadLayout, HeadNormRope,
    KvPoolSpec, MatrixData, Norm, Result, RowBatch, ValueSource,
};

use crate::arguments::{AttentionJob, GATHERED, RowIds};
use crate::cache::ProgramCache;
use crate::device::{Device, Found, Kernels, launch};
use crate::error::CudaError;
use crate::experts::{CudaRouting, TILE};
use crate::kv::CudaKvPool;
use crate::matrix::{CudaMatrix, launches};
use crate::memory::{CudaBuffer, Memory, Scratch};
use crate::programs::Program;
use crate::rows::CudaRows;

/// Threads of a block of the kernels of `rows.cu` that do not say otherwise.
const THREADS: usize = 256;
/// Threads of a block of the norms.
const NORM_THREADS: usize = 512;
/// Threads of a block of `head_norm_rope`.
const HEAD_THREADS: usize = 64;
/// Threads of a block of the kernels of `matrix.cu`.
const MATRIX_THREADS: usize = 128;
/// Threads of a block of the kernels of `cache.cu`.
const CACHE_THREADS: usize = 128;
/// Most blocks along the second and third axis of a grid.
const MAX_GRID: usize = 65535;
/// Most experts: their probabilities are kept in shared memory.
const MAX_EXPERTS: usize = 4096;

/// How a [`CudaBackend`] runs.
#[derive(Clone, Debug, Default)]
pub struct CudaConfig {
    /// Number of the device.
    pub device: usize,
    /// Where compiled programs are kept; absent: they are compiled each time.
    pub program_cache: Option<ProgramCache>,
}

/// A CUDA GPU as a device.
pub struct CudaBackend {
    device: Arc<Device>,
    rows: Arc<Kernels>,
    /// Signs of the rotation and levels of the TurboQuant formats.
    constants: Memory<f32>,
    /// The first vector that could not be stored; 0: none.
    not_finite: Memory<u64>,
    /// Whether something was enqueued that may set it.
    watch_not_finite: AtomicBool,
    partial: Mutex<Scratch<f32>>,
}

impl CudaBackend {
    /// Opens a device.
    ///
    /// # Errors
    /// When there is no driver, no compiler, no such device, or it is too old or fails.
    pub fn new(config: CudaConfig) -> std::result::Result<Self, CudaError> {
        let device = Arc::new(Device::open(config.device, config.program_cache)?);
        let failed = |e: BackendError| CudaError::Driver {
            doing: "opening the device".into(),
            message: e.to_string(),
        };
        crate::compile::version()?;
        let rows = device.program(Program::Rows).map_err(failed)?;
        let constants: Vec<f32> =
            rotation::signs().iter().chain(levels(4)).chain(levels(5)).copied().collect();
        let constants = Memory::copied(&device, &constants, "constants").map_err(failed)?;
        let not_finite = Memory::zeroed(&device, 1, "a flag").map_err(failed)?;
        Ok(Self {
            device,
            rows,
            constants,
            not_finite,
            watch_not_finite: AtomicBool::new(false),
            partial: Mutex::default(),
        })
    }

    /// The device.
    pub fn found(&self) -> &Found {
        self.device.found()
    }

    /// Bytes a second that a copy inside the device's memory reads and writes together, measured.
    ///
    /// # Errors
    /// When the device fails.
    pub fn copy_bandwidth(&self) -> Result<f64> {
        const BYTES: usize = 1 << 30;
        const COPIES: u32 = 8;
        let device = &self.device;
        let from = Memory::<u8>::zeroed(device, BYTES, "a measurement")?;
        let mut to = Memory::<u8>::zeroed(device, BYTES, "a measurement")?;
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            device.synchronize()?;
            let begin = std::time::Instant::now();
            for _ in 0..COPIES {
                to.copy_from(device, &from)?;
            }
            device.synchronize()?;
            best = best.min(begin.elapsed().as_secs_f64());
        }
        Ok(2.0 * BYTES as f64 * f64::from(COPIES) / best)
    }

    /// Bytes of memory that are free.
    ///
    /// # Errors
    /// When the device fails.
    pub fn free_bytes(&self) -> Result<u64> {
        self.device.free_bytes()
    }

    fn kernels(&self, program: Program) -> Result<Arc<Kernels>> {
        self.device.program(program)
    }

    fn address(&self, buffer: &CudaBuffer) -> u64 {
        buffer.memory.address(&self.device)
    }

    /// The address of an optional buffer, 0 for none.
    fn optional(&self, buffer: Option<&CudaBuffer>) -> u64 {
        buffer.map_or(0, |b| self.address(b))
    }

    /// Reports a vector that could not be stored.
    fn check_not_finite(&self) -> Result<()> {
        if !self.watch_not_finite.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let mut flag = [0u64];
        self.not_finite.read(&self.device, 0, &mut flag)?;
        if flag[0] == 0 {
            return Ok(());
        }
        let address = self.not_finite.address(&self.device);
        launch!(self.device, self.rows.get("clear"), (1, 1, 1), 1, 0; address);
        let part = if flag[0] >> 62 & 1 == 0 { "key" } else { "value" };
        let (layer, position) = ((flag[0] >> 32 & 0x3fff_ffff) as usize, flag[0] as u32);
        Err(BackendError::NotFinite { part, layer, position })
    }
}

fn needs(buffer: &CudaBuffer, len: usize) {
    assert!(len <= buffer.len, "a buffer of {} elements is used for {len}", buffer.len);
}

/// Columns of rows need so many elements.
fn columns_len(columns: &Columns<CudaBuffer>, dims: Dims) -> usize {
    if dims.rows == 0 { 0 } else { (dims.rows - 1) * columns.stride + columns.offset + dims.cols }
}

impl Backend for CudaBackend {
    type Buffer = CudaBuffer;
    type Matrix = CudaMatrix;
    type Rows = CudaRows;
    type KvPool = CudaKvPool;
    type Routing = CudaRouting;

    fn name(&self) -> String {
        self.device.name()
    }

    fn synchronize(&self) -> Result<()> {
        self.device.synchronize()
    }

    fn buffer(&self, len: usize) -> Result<CudaBuffer> {
        Ok(CudaBuffer { memory: Memory::zeroed(&self.device, len, "activations")?, len })
    }

    fn upload(&self, data: &[f32], buffer: &mut CudaBuffer, offset: usize) -> Result<()> {
        needs(buffer, offset + data.len());
        buffer.memory.write(&self.device, data, offset)
    }

    fn download(&self, buffer: &CudaBuffer, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        needs(buffer, range.end);
        assert_eq!(range.len(), out.len(), "elements to download");
        buffer.memory.read(&self.device, range.start, out)?;
        self.check_not_finite()
    }

    fn matrix(&self, data: MatrixData) -> Result<CudaMatrix> {
        // Compiled now, so that the first step does not wait for it.
        self.kernels(Program::Matrix(data.ty))?;
        CudaMatrix::new(&self.device, &data)
    }

    fn upload_rows(&self, batch: &RowBatch, rows: &mut CudaRows) -> Result<()> {
        rows.upload(&self.device, batch)
    }

    fn kv_pool(&self, spec: KvPoolSpec) -> Result<CudaKvPool> {
        let pool = CudaKvPool::new(&self.device, spec)?;
        self.kernels(Program::Cache(spec.k_format, spec.v_format))?;
        Ok(pool)
    }

    fn kv_reserve(&self, pool: &mut CudaKvPool, n_blocks: usize) -> Result<()> {
        pool.reserve(n_blocks);
        Ok(())
    }

    fn kv_free(&self, pool: &mut CudaKvPool, blocks: &[u32]) -> Result<()> {
        pool.free(blocks);
        Ok(())
    }

    fn kv_copy(&self, pool: &mut CudaKvPool, cells: &[(u32, u32)]) -> Result<()> {
        let spec = *pool.spec();
        let kernels = self.kernels(Program::Cache(spec.k_format, spec.v_format))?;
        pool.materialise(&self.device, cells.iter().flat_map(|&(from, to)| [from, to]))?;
        let blocks = pool.update(&self.device)?;
        for &(from, to) in cells {
            let grid = (spec.layers * spec.kv_heads, 1, 1);
            launch!(self.device, kernels.get("kv_copy"), grid, CACHE_THREADS, 0; blocks, from, to, pool.layout());
        }
        Ok(())
    }

    fn kv_export(&self, pool: &CudaKvPool, block: u32, out: &mut Vec<u8>) -> Result<()> {
        pool.export(&self.device, block, out)
    }

    fn kv_import(&self, pool: &mut CudaKvPool, block: u32, bytes: &[u8]) -> Result<()> {
        pool.import(&self.device, block, bytes)
    }

    fn kv_layout(&self) -> String {
        let (major, minor) = self.device.found().capability;
        format!("cuda layout 1, kernels 1, compute capability {major}.{minor}")
    }

    fn embed(&self, table: &CudaMatrix, rows: &CudaRows, scale: f32, out: &mut CudaBuffer) -> Result<()> {
        let (device, n_rows) = (&self.device, rows.batch().len());
        if n_rows == 0 {
            return Ok(());
        }
        needs(out, n_rows * table.cols);
        let kernels = self.kernels(Program::Matrix(table.ty))?;
        launch!(device, kernels.get("embed"), (n_rows, 1, 1), MATRIX_THREADS, 0;
            table.memory.address(device), table.row_bytes as u64, table.cols as i32, rows.tokens(device), scale,
            self.address(out));
        Ok(())
    }

    fn gather(&self, x: &CudaBuffer, rows: &[u32], cols: usize, out: &mut CudaBuffer) -> Result<()> {
        needs(out, rows.len() * cols);
        for (part, rows) in rows.chunks(GATHERED).enumerate() {
            let mut ids = RowIds { ids: [0; GATHERED] };
            ids.ids[..rows.len()].copy_from_slice(rows);
            let target = out.memory.address_of(&self.device, part * GATHERED * cols);
            launch!(self.device, self.rows.get("gather"), (rows.len(), 1, 1), THREADS, 0;
                self.address(x), ids, cols as i32, target);
        }
        Ok(())
    }

    fn rms_norm(
        &self,
        x: &CudaBuffer,
        norm: Norm<CudaBuffer>,
        dims: Dims,
        out: &mut CudaBuffer,
    ) -> Result<()> {
        needs(x, dims.rows * dims.cols);
        needs(out, dims.rows * dims.cols);
        if dims.rows == 0 {
            return Ok(());
        }
        launch!(self.device, self.rows.get("rms_norm"), (dims.rows, 1, 1), NORM_THREADS, 0;
            self.address(x), self.optional(norm.weight), norm.eps, dims.cols as i32, self.address(out));
        Ok(())
    }

    fn linear(
        &self,
        x: &CudaBuffer,
        n_rows: usize,
        matrices: &[&CudaMatrix],
        out: &mut CudaBuffer,
        out_stride: usize,
    ) -> Result<()> {
        let Some(first) = matrices.first() else { return Ok(()) };
        if n_rows == 0 {
            return Ok(());
        }
        needs(x, n_rows * first.cols);
        let n_out: usize = matrices.iter().map(|m| m.rows).sum();
        needs(out, (n_rows - 1) * out_stride + n_out);
        let (name, rows) = match n_rows {
            1 => ("linear_1", 1),
            2 => ("linear_2", 2),
            3 | 4 => ("linear_4", 4),
            _ => ("linear_8", 8),
        };
        for mut launch in launches(&self.device, matrices, rows) {
            let kernels = self.kernels(Program::Matrix(launch.ty))?;
            // Rows beyond the height of a grid go in further launches.
            for begin in (0..n_rows).step_by(rows * MAX_GRID) {
                let part = (n_rows - begin).min(rows * MAX_GRID);
                launch.product.x = x.memory.address_of(&self.device, begin * first.cols);
                launch.product.out = out.memory.address_of(&self.device, begin * out_stride);
                launch.product.n_rows = part as i32;
                launch.product.out_stride = out_stride as i32;
                let grid = (launch.blocks, part.div_ceil(rows), 1);
                launch!(self.device, kernels.get(name), grid, MATRIX_THREADS, 0; launch.product);
            }
        }
        Ok(())
    }

    fn row_dots(&self, x: &CudaBuffer, row: usize, matrix: &CudaMatrix, ids: &[u32]) -> Result<Vec<f32>> {
        let device = &self.device;
        let mut dots = vec![0.0; ids.len()];
        if ids.is_empty() {
            return Ok(dots);
        }
        needs(x, (row + 1) * matrix.cols);
        let kernels = self.kernels(Program::Matrix(matrix.ty))?;
        let list = Memory::copied(device, ids, "ids")?;
        let out = Memory::<f32>::zeroed(device, ids.len(), "products")?;
        launch!(device, kernels.get("row_dots"), (ids.len(), 1, 1), MATRIX_THREADS, 0;
            matrix.memory.address(device), matrix.row_bytes as u64, matrix.cols as i32, list.address(device),
            x.memory.address_of(device, row * matrix.cols), out.address(device));
        out.read(device, 0, &mut dots)?;
        Ok(dots)
    }

    fn rope_table(&self, rows: &CudaRows, frequencies: &CudaBuffer, out: &mut CudaBuffer) -> Result<()> {
        let (n_rows, half) = (rows.batch().len(), frequencies.len);
        if n_rows == 0 || half == 0 {
            return Ok(());
        }
        needs(out, n_rows * 2 * half);
        launch!(self.device, self.rows.get("rope_table"), (n_rows, 1, 1), MATRIX_THREADS, 0;
            rows.positions(&self.device), self.address(frequencies), half as i32, self.address(out));
        Ok(())
    }

    fn head_norm_rope(
        &self,
        qkv: &mut CudaBuffer,
        n_rows: usize,
        heads: &HeadNormRope<CudaBuffer>,
    ) -> Result<()> {
        let layout = heads.layout;
        needs(qkv, n_rows * layout.stride());
        needs(heads.rope, n_rows * layout.head_dim);
        let (n_heads, k_norm, source) = match &heads.kv {
            None => (layout.heads, 0, 0),
            Some(kv) => {
                let source = match kv.value {
                    ValueSource::Projected => 1,
                    ValueSource::ProjectedNormed => 2,
                    ValueSource::KeyNormed => 3,
                };
                (layout.heads + layout.kv_heads, self.address(kv.k_norm), source)
            }
        };
        let row_words = layout.stride();
        for begin in (0..n_rows).step_by(MAX_GRID) {
            let part = (n_rows - begin).min(MAX_GRID);
            launch!(self.device, self.rows.get("head_norm_rope"), (n_heads, part, 1), HEAD_THREADS, 0;
                qkv.memory.address_of(&self.device, begin * row_words), layout.heads as i32, layout.kv_heads as i32,
                layout.head_dim as i32, self.address(heads.q_norm), k_norm, source,
                heads.rope.memory.address_of(&self.device, begin * layout.head_dim), heads.eps);
        }
        Ok(())
    }

    fn kv_store(
        &self,
        qkv: &CudaBuffer,
        layout: HeadLayout,
        rows: &CudaRows,
        group: usize,
        pool: &mut CudaKvPool,
        layer: usize,
    ) -> Result<()> {
        let (device, spec) = (&self.device, *pool.spec());
        let cells = &rows.batch().groups[group].store;
        if cells.is_empty() {
            return Ok(());
        }
        assert!(layer < spec.layers && layout.kv_heads == spec.kv_heads && layout.head_dim == spec.head_dim);
        needs(qkv, cells.len() * layout.stride());
        let kernels = self.kernels(Program::Cache(spec.k_format, spec.v_format))?;
        pool.materialise(device, cells.iter().copied())?;
        let blocks = pool.update(device)?;
        if spec.k_format.turbo_bits().or(spec.v_format.turbo_bits()).is_some() {
            self.watch_not_finite.store(true, Ordering::Relaxed);
        }
        let (store, positions) = (rows.group(device, group).store, rows.positions(device));
        for begin in (0..cells.len()).step_by(MAX_GRID) {
            let part = (cells.len() - begin).min(MAX_GRID);
            launch!(device, kernels.get("kv_store"), (layout.kv_heads, part, 2), CACHE_THREADS, 0;
                qkv.memory.address_of(device, begin * layout.stride()), layout.heads as i32, store + 4 * begin as u64,
                positions + 4 * begin as u64, blocks, layer as i32, pool.layout(), self.constants.address(device),
                self.not_finite.address(device));
        }
        Ok(())
    }

    fn attention(
        &self,
        qkv: &CudaBuffer,
        attention: &Attention,
        rows: &CudaRows,
        pool: &CudaKvPool,
        out: &mut CudaBuffer,
    ) -> Result<()> {
        let (device, layout, spec) = (&self.device, attention.layout, pool.spec());
        let positions = &rows.batch().positions;
        assert!(layout.kv_heads == spec.kv_heads && layout.head_dim == spec.head_dim);
        needs(qkv, positions.len() * layout.stride());
        needs(out, positions.len() * layout.heads * layout.head_dim);
        let group = rows.group(device, attention.group);
        let job = AttentionJob {
            qkv: self.address(qkv),
            blocks: pool.addresses(device),
            positions: rows.positions(device),
            views: group.views,
            tables: group.blocks,
            tails: group.tails,
            constants: self.constants.address(device),
            out: self.address(out),
            layout: pool.layout(),
            scale: attention.scale,
            heads: layout.heads as i32,
            // A window beyond every position is none.
            window: attention.window.map_or(0, |w| w.clamp(1, i32::MAX as usize) as i32),
            layer: attention.layer as i32,
            ..AttentionJob::default()
        };
        let kernels = self.kernels(Program::Cache(spec.k_format, spec.v_format))?;
        let mut partial = self.partial.lock().unwrap_or_else(PoisonError::into_inner);
        crate::attention::attend(device, &kernels, attention, positions, job, &mut partial)
    }

    fn gated_activation(
        &self,
        gate: Columns<CudaBuffer>,
        up: Columns<CudaBuffer>,
        dims: Dims,
        out: &mut CudaBuffer,
    ) -> Result<()> {
        let n = dims.rows * dims.cols;
        if n == 0 {
            return Ok(());
        }
        needs(gate.buffer, columns_len(&gate, dims));
        needs(up.buffer, columns_len(&up, dims));
        needs(out, n);
        let address = |c: &Columns<CudaBuffer>| c.buffer.memory.address_of(&self.device, c.offset);
        launch!(self.device, self.rows.get("gated_activation"), (n.div_ceil(THREADS), 1, 1), THREADS, 0;
            address(&gate), gate.stride as i32, address(&up), up.stride as i32, dims.rows as i32, dims.cols as i32,
            self.address(out));
        Ok(())
    }

    fn add_norm(
        &self,
        x: &mut CudaBuffer,
        y: &CudaBuffer,
        norm: Norm<CudaBuffer>,
        scale: Option<&CudaBuffer>,
        dims: Dims,
    ) -> Result<()> {
        needs(x, dims.rows * dims.cols);
        needs(y, dims.rows * dims.cols);
        if dims.rows == 0 {
            return Ok(());
        }
        launch!(self.device, self.rows.get("add_norm"), (dims.rows, 1, 1), NORM_THREADS, 0;
            self.address(x), self.address(y), self.optional(norm.weight), norm.eps, self.optional(scale),
            scale.map_or(0, |s| s.len as i32), dims.cols as i32);
        Ok(())
    }

    fn route(
        &self,
        scores: &CudaBuffer,
        dims: Dims,
        top_k: usize,
        expert_scale: Option<&CudaBuffer>,
        routing: &mut CudaRouting,
    ) -> Result<()> {
        let device = &self.device;
        let n_experts = dims.cols;
        if n_experts > MAX_EXPERTS || top_k == 0 || top_k > n_experts {
            return Err(device.unsupported(format!("a choice of {top_k} of {n_experts} experts")));
        }
        (routing.rows, routing.top_k, routing.n_experts, routing.tiles) = (dims.rows, top_k, n_experts, None);
        if dims.rows == 0 {
            return Ok(());
        }
        needs(scores, dims.rows * n_experts);
        let choices = routing.choices();
        let experts = routing.experts.reserve(device, choices, "expert choices")?.address(device);
        let weights = routing.weights.reserve(device, choices, "expert weights")?.address(device);
        launch!(device, self.rows.get("route"), (dims.rows, 1, 1), 32, 12 * n_experts;
            self.address(scores), n_experts as i32, top_k as i32, self.optional(expert_scale), experts, weights);
        if let Some(tiles) = routing.most_tiles() {
            let tile_experts = routing.tile_experts.reserve(device, tiles, "expert tiles")?.address(device);
            let tile_choices =
                routing.tile_choices.reserve(device, TILE * tiles, "expert tiles")?.address(device);
            let n_tiles = routing.n_tiles.reserve(device, 1, "expert tiles")?.address(device);
            launch!(device, self.rows.get("group_choices"), (1, 1, 1), THREADS, 8 * n_experts;
                experts, choices as i32, n_experts as i32, tile_experts, tile_choices, n_tiles);
            routing.tiles = Some(tiles);
        }
        Ok(())
    }

    fn choices(&self, routing: &CudaRouting) -> Result<Choices> {
        let n = routing.choices();
        let mut choices = Choices { experts: vec![0; n], weights: vec![0.0; n] };
        if let (Some(experts), Some(weights)) = (routing.experts.get(), routing.weights.get()) {
            experts.read(&self.device, 0, &mut choices.experts)?;
            weights.read(&self.device, 0, &mut choices.weights)?;
        }
        Ok(choices)
    }

    fn expert_linear(
        &self,
        x: &CudaBuffer,
        input: ExpertInput,
        routing: &CudaRouting,
        matrices: &[&CudaMatrix],
        out: &mut CudaBuffer,
        out_stride: usize,
    ) -> Result<()> {
        let (device, choices) = (&self.device, routing.choices());
        let (Some(first), true) = (matrices.first(), choices > 0) else { return Ok(()) };
        let (n_inputs, divisor) = match input {
            ExpertInput::PerRow => (routing.rows, routing.top_k),
            ExpertInput::PerChoice => (choices, 1),
        };
        needs(x, n_inputs * first.cols);
        let n_out: usize = matrices.iter().map(|m| m.rows).sum();
        needs(out, (choices - 1) * out_stride + n_out);
        let (name, rows, height) = match routing.tiles {
            Some(tiles) => ("experts_8", TILE, tiles),
            None => ("experts_1", 1, choices),
        };
        if height > MAX_GRID {
            return Err(
                device.unsupported(format!("{choices} expert choices in one batch; use smaller batches"))
            );
        }
        let u32s = |scratch: &Scratch<u32>| scratch.get().map_or(0, |m| m.address(device));
        for mut launch in launches(device, matrices, rows) {
            let kernels = self.kernels(Program::Matrix(launch.ty))?;
            launch.product.x = self.address(x);
            launch.product.out = self.address(out);
            launch.product.experts = u32s(&routing.experts);
            launch.product.tile_experts = u32s(&routing.tile_experts);
            launch.product.tile_choices = routing.tile_choices.get().map_or(0, |m| m.address(device));
            launch.product.n_tiles = u32s(&routing.n_tiles);
            launch.product.n_rows = choices as i32;
            launch.product.out_stride = out_stride as i32;
            launch.product.divisor = divisor as i32;
            launch!(device, kernels.get(name), (launch.blocks, height, 1), MATRIX_THREADS, 0; launch.product);
        }
        Ok(())
    }

    fn combine(
        &self,
        y: &CudaBuffer,
        routing: &CudaRouting,
        cols: usize,
        out: &mut CudaBuffer,
    ) -> Result<()> {
        let n = routing.rows * cols;
        let (Some(weights), true) = (routing.weights.get(), n > 0) else { return Ok(()) };
        needs(y, routing.choices() * cols);
        needs(out, n);
        launch!(self.device, self.rows.get("combine"), (n.div_ceil(THREADS), 1, 1), THREADS, 0;
            self.address(y), weights.address(&self.device), routing.top_k as i32, routing.rows as i32, cols as i32,
            self.address(out));
        Ok(())
    }

    fn softcap(&self, x: &mut CudaBuffer, cap: f32, len: usize) -> Result<()> {
        needs(x, len);
        if len == 0 {
            return Ok(());
        }
        launch!(self.device, self.rows.get("softcap"), (len.div_ceil(THREADS), 1, 1), THREADS, 0;
            self.address(x), cap, len as u64);
        Ok(())
    }
}
