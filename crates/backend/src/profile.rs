//! A backend that measures another one.
//!
//! [`Profiled`] forwards every operation and records how long it took and which bytes of weights and of keys and values
//! it had to read. The forward pass does not know: it is generic over the backend. Weights are told apart by the names
//! of their tensors without the layer, so that the calls of all layers add up to one line.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::rows::GroupRows;
use crate::{
    Attention, Backend, Best, Choices, Columns, Dims, ExpertInput, HeadLayout, HeadNormRope, KvPoolSpec,
    MatrixData, Norm, Result, RowBatch,
};

/// What the calls of one operation took.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationTime {
    /// The operation, and for products the tensors: `linear ffn_gate+ffn_up`.
    pub name: String,
    /// Calls.
    pub calls: usize,
    /// Time in them.
    pub time: Duration,
    /// Bytes of weights, keys and values that they read at least.
    pub bytes: u64,
}

/// Measures the operations of `B`.
#[derive(Debug)]
pub struct Profiled<B> {
    inner: Arc<B>,
    /// In the order of first use.
    operations: Mutex<Vec<OperationTime>>,
}

/// A matrix of a [`Profiled`] backend.
#[derive(Debug)]
pub struct ProfiledMatrix<M> {
    inner: M,
    /// The tensor's name without its layer and `.weight`.
    kind: String,
    /// Bytes of one matrix of the stack.
    bytes: u64,
    row_bytes: u64,
}

/// Rows of a [`Profiled`] backend.
#[derive(Debug, Default)]
pub struct ProfiledRows<R> {
    inner: R,
    batch: RowBatch,
}

/// A pool of a [`Profiled`] backend.
#[derive(Debug)]
pub struct ProfiledPool<P> {
    inner: P,
    spec: KvPoolSpec,
}

impl<B> Profiled<B> {
    /// Measures `inner`.
    pub fn new(inner: Arc<B>) -> Self {
        Self { inner, operations: Mutex::default() }
    }

    /// The backend that is measured.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// What was recorded since the last call, in the order of first use.
    pub fn take(&self) -> Vec<OperationTime> {
        std::mem::take(&mut self.operations.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<B: Backend> Profiled<B> {
    /// Runs `work` to its end and books it.
    fn measure<T>(&self, name: &str, bytes: u64, work: impl FnOnce(&B) -> Result<T>) -> Result<T> {
        let begin = Instant::now();
        let result = work(&self.inner)?;
        self.inner.synchronize()?;
        let time = begin.elapsed();
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        match operations.iter_mut().find(|o| o.name == name) {
            Some(operation) => {
                operation.calls += 1;
                operation.time += time;
                operation.bytes += bytes;
            }
            None => operations.push(OperationTime { name: name.to_owned(), calls: 1, time, bytes }),
        }
        Ok(result)
    }

    /// Books bytes that were not known before the operation.
    fn add_bytes(&self, name: &str, bytes: u64) {
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(operation) = operations.iter_mut().find(|o| o.name == name) {
            operation.bytes += bytes;
        }
    }
}

/// `blk.3.ffn_gate.weight` is a `ffn_gate`.
fn kind(name: &str) -> String {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let rest = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    rest.map_or(name, |(_, rest)| rest).to_owned()
}

/// `operation a+b` for matrices `a` and `b`, and their bytes.
fn product<M>(operation: &str, matrices: &[&ProfiledMatrix<M>]) -> (String, u64) {
    let kinds: Vec<&str> = matrices.iter().map(|m| m.kind.as_str()).collect();
    (format!("{operation} {}", kinds.join("+")), matrices.iter().map(|m| m.bytes).sum())
}

/// Bytes of keys and values that the rows see, those that several rows of a sequence share counted once.
fn attended(group: &GroupRows, positions: &[u32], window: Option<usize>, spec: &KvPoolSpec) -> u64 {
    let vector = spec.k_format.vector_bytes(spec.head_dim) + spec.v_format.vector_bytes(spec.head_dim);
    let mut total = 0;
    let mut sequence: Option<(usize, usize, usize)> = None;
    for (view, &position) in group.views.iter().zip(positions) {
        let end = position as usize + 1;
        let begin = window.map_or(0, |w| end.saturating_sub(w));
        match &mut sequence {
            Some((table, first, last)) if *table == view.table as usize => {
                *first = begin.min(*first);
                *last = end.max(*last);
            }
            _ => {
                total += sequence.map_or(0, |(_, first, last)| last - first);
                sequence = Some((view.table as usize, begin, end));
            }
        }
    }
    total += sequence.map_or(0, |(_, first, last)| last - first);
    (total * spec.kv_heads * vector) as u64
}

impl<B: Backend> Backend for Profiled<B> {
    type Buffer = B::Buffer;
    type Matrix = ProfiledMatrix<B::Matrix>;
    type Rows = ProfiledRows<B::Rows>;
    type KvPool = ProfiledPool<B::KvPool>;
    type Routing = B::Routing;

    fn name(&self) -> String {
        self.inner.name()
    }

    fn synchronize(&self) -> Result<()> {
        self.inner.synchronize()
    }

    fn buffer(&self, len: usize) -> Result<B::Buffer> {
        self.inner.buffer(len)
    }

    fn upload(&self, data: &[f32], buffer: &mut B::Buffer, offset: usize) -> Result<()> {
        self.inner.upload(data, buffer, offset)
    }

    fn download(&self, buffer: &B::Buffer, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        self.measure("download", 0, |b| b.download(buffer, range, out))
    }

    fn matrix(&self, data: MatrixData) -> Result<Self::Matrix> {
        let (kind, bytes) = (kind(&data.name), (data.bytes.len() / data.stack.max(1)) as u64);
        let row_bytes = bytes / data.rows.max(1) as u64;
        Ok(ProfiledMatrix { inner: self.inner.matrix(data)?, kind, bytes, row_bytes })
    }

    fn upload_rows(&self, batch: &RowBatch, rows: &mut Self::Rows) -> Result<()> {
        rows.batch.clone_from(batch);
        self.measure("upload rows", 0, |b| b.upload_rows(batch, &mut rows.inner))
    }

    fn kv_pool(&self, spec: KvPoolSpec) -> Result<Self::KvPool> {
        Ok(ProfiledPool { inner: self.inner.kv_pool(spec)?, spec })
    }

    fn kv_reserve(&self, pool: &mut Self::KvPool, n_blocks: usize) -> Result<()> {
        self.inner.kv_reserve(&mut pool.inner, n_blocks)
    }

    fn kv_free(&self, pool: &mut Self::KvPool, blocks: &[u32]) -> Result<()> {
        self.inner.kv_free(&mut pool.inner, blocks)
    }

    fn kv_copy(&self, pool: &mut Self::KvPool, cells: &[(u32, u32)]) -> Result<()> {
        self.measure("kv_copy", 0, |b| b.kv_copy(&mut pool.inner, cells))
    }

    fn kv_export(&self, pool: &Self::KvPool, block: u32, out: &mut Vec<u8>) -> Result<()> {
        self.inner.kv_export(&pool.inner, block, out)
    }

    fn kv_import(&self, pool: &mut Self::KvPool, block: u32, bytes: &[u8]) -> Result<()> {
        self.inner.kv_import(&mut pool.inner, block, bytes)
    }

    fn kv_layout(&self) -> String {
        self.inner.kv_layout()
    }

    fn embed(&self, table: &Self::Matrix, rows: &Self::Rows, scale: f32, out: &mut B::Buffer) -> Result<()> {
        let (name, bytes) =
            (format!("embed {}", table.kind), table.row_bytes * rows.batch.tokens.len() as u64);
        self.measure(&name, bytes, |b| b.embed(&table.inner, &rows.inner, scale, out))
    }

    fn gather(&self, x: &B::Buffer, rows: &[u32], cols: usize, out: &mut B::Buffer) -> Result<()> {
        self.measure("gather", 0, |b| b.gather(x, rows, cols, out))
    }

    fn rms_norm(&self, x: &B::Buffer, norm: Norm<B::Buffer>, dims: Dims, out: &mut B::Buffer) -> Result<()> {
        self.measure("rms_norm", 0, |b| b.rms_norm(x, norm, dims, out))
    }

    fn linear(
        &self,
        x: &B::Buffer,
        n_rows: usize,
        matrices: &[&Self::Matrix],
        out: &mut B::Buffer,
        out_stride: usize,
    ) -> Result<()> {
        let (name, bytes) = product("linear", matrices);
        let inner: Vec<&B::Matrix> = matrices.iter().map(|m| &m.inner).collect();
        self.measure(&name, bytes, |b| b.linear(x, n_rows, &inner, out, out_stride))
    }

    fn row_dots(&self, x: &B::Buffer, row: usize, matrix: &Self::Matrix, ids: &[u32]) -> Result<Vec<f32>> {
        let bytes = matrix.row_bytes * ids.len() as u64;
        self.measure("row_dots", bytes, |b| b.row_dots(x, row, &matrix.inner, ids))
    }

    fn screen_bytes(&self, matrix: &Self::Matrix) -> Option<usize> {
        self.inner.screen_bytes(&matrix.inner)
    }

    fn screen(&self, matrix: &Self::Matrix, importance: &[f32]) -> Result<bool> {
        self.inner.screen(&matrix.inner, importance)
    }

    fn best(
        &self,
        x: &B::Buffer,
        row: usize,
        matrix: &Self::Matrix,
        k: usize,
        softcap: Option<f32>,
    ) -> Result<Option<Best>> {
        let screen = self.inner.screen_bytes(&matrix.inner).unwrap_or(0) as u64;
        let name = format!("best {}", matrix.kind);
        let result = self.measure(&name, screen, |b| b.best(x, row, &matrix.inner, k, softcap))?;
        if let Some(best) = &result {
            self.add_bytes(&name, matrix.row_bytes * best.ids.len() as u64);
        }
        Ok(result)
    }

    fn rope_table(&self, rows: &Self::Rows, frequencies: &B::Buffer, out: &mut B::Buffer) -> Result<()> {
        self.measure("rope_table", 0, |b| b.rope_table(&rows.inner, frequencies, out))
    }

    fn head_norm_rope(
        &self,
        qkv: &mut B::Buffer,
        n_rows: usize,
        heads: &HeadNormRope<B::Buffer>,
    ) -> Result<()> {
        self.measure("head_norm_rope", 0, |b| b.head_norm_rope(qkv, n_rows, heads))
    }

    fn kv_store(
        &self,
        qkv: &B::Buffer,
        layout: HeadLayout,
        rows: &Self::Rows,
        group: usize,
        pool: &mut Self::KvPool,
        layer: usize,
    ) -> Result<()> {
        self.measure("kv_store", 0, |b| b.kv_store(qkv, layout, &rows.inner, group, &mut pool.inner, layer))
    }

    fn attention(
        &self,
        qkv: &B::Buffer,
        attention: &Attention,
        rows: &Self::Rows,
        pool: &Self::KvPool,
        out: &mut B::Buffer,
    ) -> Result<()> {
        let name = if attention.window.is_some() { "attention (sliding)" } else { "attention (full)" };
        let group = &rows.batch.groups[attention.group];
        let bytes = attended(group, &rows.batch.positions, attention.window, &pool.spec);
        self.measure(name, bytes, |b| b.attention(qkv, attention, &rows.inner, &pool.inner, out))
    }

    fn gated_activation(
        &self,
        gate: Columns<B::Buffer>,
        up: Columns<B::Buffer>,
        dims: Dims,
        out: &mut B::Buffer,
    ) -> Result<()> {
        self.measure("gated_activation", 0, |b| b.gated_activation(gate, up, dims, out))
    }

    fn add_norm(
        &self,
        x: &mut B::Buffer,
        y: &B::Buffer,
        norm: Norm<B::Buffer>,
        scale: Option<&B::Buffer>,
        dims: Dims,
    ) -> Result<()> {
        self.measure("add_norm", 0, |b| b.add_norm(x, y, norm, scale, dims))
    }

    fn route(
        &self,
        scores: &B::Buffer,
        dims: Dims,
        top_k: usize,
        expert_scale: Option<&B::Buffer>,
        routing: &mut B::Routing,
    ) -> Result<()> {
        self.measure("route", 0, |b| b.route(scores, dims, top_k, expert_scale, routing))
    }

    fn choices(&self, routing: &B::Routing) -> Result<Choices> {
        self.inner.choices(routing)
    }

    fn expert_linear(
        &self,
        x: &B::Buffer,
        input: ExpertInput,
        routing: &B::Routing,
        matrices: &[&Self::Matrix],
        out: &mut B::Buffer,
        out_stride: usize,
    ) -> Result<()> {
        let mut experts = self.inner.choices(routing)?.experts;
        experts.sort_unstable();
        experts.dedup();
        let (name, each) = product("expert_linear", matrices);
        let inner: Vec<&B::Matrix> = matrices.iter().map(|m| &m.inner).collect();
        self.measure(&name, each * experts.len() as u64, |b| {
            b.expert_linear(x, input, routing, &inner, out, out_stride)
        })
    }

    fn combine(&self, y: &B::Buffer, routing: &B::Routing, cols: usize, out: &mut B::Buffer) -> Result<()> {
        self.measure("combine", 0, |b| b.combine(y, routing, cols, out))
    }

    fn softcap(&self, x: &mut B::Buffer, cap: f32, len: usize) -> Result<()> {
        self.measure("softcap", 0, |b| b.softcap(x, cap, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReferenceBackend;

    #[test]
    fn kinds_are_tensors_without_their_layer() {
        assert_eq!(kind("blk.12.ffn_gate_exps.weight"), "ffn_gate_exps");
        assert_eq!(kind("token_embd.weight"), "token_embd");
        assert_eq!(kind("blk"), "blk");
    }

    #[test]
    fn calls_of_several_layers_add_up() {
        let backend = Profiled::new(Arc::new(ReferenceBackend));
        let matrix = |layer: usize| {
            let data = MatrixData {
                name: format!("blk.{layer}.attn_q.weight"),
                ty: lapidary_gguf::GgmlType::F32,
                rows: 2,
                cols: 3,
                stack: 1,
                bytes: vec![0; 24].into(),
            };
            backend.matrix(data).unwrap()
        };
        let matrices = [matrix(0), matrix(1)];
        let x = backend.buffer(3).unwrap();
        let mut out = backend.buffer(2).unwrap();
        for matrix in &matrices {
            backend.linear(&x, 1, &[matrix], &mut out, 2).unwrap();
        }
        let found = backend.take();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].calls, found[0].bytes), ("linear attn_q", 2, 48));
        assert!(backend.take().is_empty());
    }
}
