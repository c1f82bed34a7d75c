//! Every operation in plain scalar code, and a backend made of it.
//!
//! [`ReferenceBackend`] is slow and exact: weights are expanded to `f32`, sums run in `f64`. Tests compare other
//! backends with it and run small models on it.

mod activation;
mod attention;
mod experts;
mod norm;

use std::ops::Range;

use lapidary_gguf::block;

pub use activation::{gated_activation, gelu_tanh, softcap};
pub use attention::{attend, dot};
pub use experts::route;
pub use norm::{add_norm, head_norm_rope, inverse_rms, rms_norm, rotate};

use crate::kv::turbo::{self, NotFinite};
use crate::{
    Attention, Backend, BackendError, Choices, Columns, Dims, ExpertInput, HeadLayout, HeadNormRope,
    KvFormat, KvPoolSpec, MatrixData, Norm, Result, RowBatch,
};

/// The backend of scalar reference operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceBackend;

/// A weight matrix expanded to `f32`.
#[derive(Debug)]
pub struct ReferenceMatrix {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
}

impl ReferenceMatrix {
    fn row(&self, index: usize) -> &[f32] {
        &self.values[index * self.cols..][..self.cols]
    }
}

/// Keys and values after a round trip through their formats, `[layer][cell][kv_head][head_dim]`.
#[derive(Debug)]
pub struct ReferencePool {
    spec: KvPoolSpec,
    n_cells: usize,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl ReferencePool {
    /// Elements of a block in each layer.
    fn block_range(&self, block: u32) -> Range<usize> {
        let len = self.spec.block_len * self.spec.kv_heads * self.spec.head_dim;
        block as usize * len..(block as usize + 1) * len
    }

    fn range(&self, cell: usize, head: usize) -> Range<usize> {
        let dim = self.spec.head_dim;
        let start = (cell * self.spec.kv_heads + head) * dim;
        start..start + dim
    }
}

/// Expert choices of the rows in flight.
#[derive(Debug, Default)]
pub struct ReferenceRouting {
    top_k: usize,
    choices: Choices,
}

/// A vector after a round trip through `format`.
fn through_format(format: KvFormat, from: &[f32], to: &mut [f32]) -> std::result::Result<(), NotFinite> {
    match format {
        KvFormat::F32 => to.copy_from_slice(from),
        KvFormat::F16 => {
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = half::f16::from_f32(from).to_f32());
        }
        KvFormat::Tq8 | KvFormat::Tq6 | KvFormat::Tq5 | KvFormat::Tq4 => {
            let mut codes = vec![0; format.code_bytes(from.len())];
            let mut scales = vec![0.0; format.scale_count(from.len())];
            turbo::encode(format, from, &mut codes, &mut scales)?;
            turbo::decode(format, &codes, &scales, to);
        }
    }
    Ok(())
}

impl Backend for ReferenceBackend {
    type Buffer = Vec<f32>;
    type Matrix = ReferenceMatrix;
    type Rows = RowBatch;
    type KvPool = ReferencePool;
    type Routing = ReferenceRouting;

    fn name(&self) -> String {
        "scalar reference".into()
    }

    fn buffer(&self, len: usize) -> Result<Vec<f32>> {
        Ok(vec![0.0; len])
    }

    fn upload(&self, data: &[f32], buffer: &mut Vec<f32>, offset: usize) -> Result<()> {
        buffer[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn download(&self, buffer: &Vec<f32>, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        out.copy_from_slice(&buffer[range]);
        Ok(())
    }

    fn matrix(&self, data: MatrixData) -> Result<ReferenceMatrix> {
        data.check()?;
        let mut values = vec![0.0; data.stack * data.rows * data.cols];
        block::dequantize(data.ty, &data.bytes, &mut values).map_err(|e| BackendError::Unsupported {
            device: self.name(),
            what: format!("{}: {e}", data.name),
        })?;
        Ok(ReferenceMatrix { rows: data.rows, cols: data.cols, values })
    }

    fn upload_rows(&self, batch: &RowBatch, rows: &mut RowBatch) -> Result<()> {
        rows.clone_from(batch);
        Ok(())
    }

    fn kv_pool(&self, spec: KvPoolSpec) -> Result<ReferencePool> {
        spec.check(&self.name())?;
        let empty = vec![Vec::new(); spec.layers];
        Ok(ReferencePool { spec, n_cells: 0, keys: empty.clone(), values: empty })
    }

    fn kv_reserve(&self, pool: &mut ReferencePool, n_blocks: usize) -> Result<()> {
        pool.n_cells = pool.n_cells.max(n_blocks * pool.spec.block_len);
        let len = pool.n_cells * pool.spec.kv_heads * pool.spec.head_dim;
        for layer in pool.keys.iter_mut().chain(&mut pool.values) {
            layer.resize(len, 0.0);
        }
        Ok(())
    }

    fn kv_free(&self, pool: &mut ReferencePool, blocks: &[u32]) -> Result<()> {
        // Keeps its memory; what is lost shows as NaN.
        for &block in blocks {
            let cells = pool.block_range(block);
            for layer in pool.keys.iter_mut().chain(&mut pool.values) {
                layer[cells.clone()].fill(f32::NAN);
            }
        }
        Ok(())
    }

    fn kv_copy(&self, pool: &mut ReferencePool, cells: &[(u32, u32)]) -> Result<()> {
        let width = pool.spec.kv_heads * pool.spec.head_dim;
        for &(from, to) in cells {
            let from = from as usize * width;
            for layer in pool.keys.iter_mut().chain(&mut pool.values) {
                layer.copy_within(from..from + width, to as usize * width);
            }
        }
        Ok(())
    }

    fn kv_export(&self, pool: &ReferencePool, block: u32, out: &mut Vec<u8>) -> Result<()> {
        let cells = pool.block_range(block);
        for layer in pool.keys.iter().chain(&pool.values) {
            out.extend(layer[cells.clone()].iter().flat_map(|x| x.to_le_bytes()));
        }
        Ok(())
    }

    fn kv_import(&self, pool: &mut ReferencePool, block: u32, bytes: &[u8]) -> Result<()> {
        let cells = pool.block_range(block);
        let expected = 4 * cells.len() * (pool.keys.len() + pool.values.len());
        if bytes.len() != expected {
            return Err(BackendError::BlockSize { expected, found: bytes.len() });
        }
        let mut values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        for layer in pool.keys.iter_mut().chain(&mut pool.values) {
            layer[cells.clone()].iter_mut().zip(&mut values).for_each(|(to, from)| *to = from);
        }
        Ok(())
    }

    fn kv_layout(&self) -> String {
        "reference".into()
    }

    fn embed(&self, table: &ReferenceMatrix, rows: &RowBatch, scale: f32, out: &mut Vec<f32>) -> Result<()> {
        for (&token, out) in rows.tokens.iter().zip(out.chunks_exact_mut(table.cols)) {
            for (out, &value) in out.iter_mut().zip(table.row(token as usize)) {
                *out = scale * value;
            }
        }
        Ok(())
    }

    fn gather(&self, x: &Vec<f32>, rows: &[u32], cols: usize, out: &mut Vec<f32>) -> Result<()> {
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(cols)) {
            out.copy_from_slice(&x[row as usize * cols..][..cols]);
        }
        Ok(())
    }

    fn rms_norm(&self, x: &Vec<f32>, norm: Norm<Vec<f32>>, dims: Dims, out: &mut Vec<f32>) -> Result<()> {
        for r in 0..dims.rows {
            let at = r * dims.cols..(r + 1) * dims.cols;
            rms_norm(&x[at.clone()], norm.weight.map(|w| &w[..]), norm.eps, &mut out[at]);
        }
        Ok(())
    }

    fn linear(
        &self,
        x: &Vec<f32>,
        n_rows: usize,
        matrices: &[&ReferenceMatrix],
        out: &mut Vec<f32>,
        out_stride: usize,
    ) -> Result<()> {
        for r in 0..n_rows {
            let mut column = r * out_stride;
            for matrix in matrices {
                let input = &x[r * matrix.cols..][..matrix.cols];
                for n in 0..matrix.rows {
                    out[column] = dot(input, matrix.row(n)) as f32;
                    column += 1;
                }
            }
        }
        Ok(())
    }

    fn row_dots(&self, x: &Vec<f32>, row: usize, matrix: &ReferenceMatrix, ids: &[u32]) -> Result<Vec<f32>> {
        let x = &x[row * matrix.cols..][..matrix.cols];
        Ok(ids.iter().map(|&id| dot(x, matrix.row(id as usize)) as f32).collect())
    }

    fn rope_table(&self, rows: &RowBatch, frequencies: &Vec<f32>, out: &mut Vec<f32>) -> Result<()> {
        let half = frequencies.len();
        for (&position, out) in rows.positions.iter().zip(out.chunks_exact_mut(2 * half)) {
            for (i, &frequency) in frequencies.iter().enumerate() {
                let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
                out[i] = cos as f32;
                out[half + i] = sin as f32;
            }
        }
        Ok(())
    }

    fn head_norm_rope(
        &self,
        qkv: &mut Vec<f32>,
        n_rows: usize,
        heads: &HeadNormRope<Vec<f32>>,
    ) -> Result<()> {
        let layout = heads.layout;
        let kv = heads.kv.as_ref().map(|kv| (&kv.k_norm[..], kv.value));
        for (r, row) in qkv.chunks_exact_mut(layout.stride()).take(n_rows).enumerate() {
            let table = &heads.rope[r * layout.head_dim..][..layout.head_dim];
            head_norm_rope(row, layout, heads.q_norm, kv, table, heads.eps);
        }
        Ok(())
    }

    fn kv_store(
        &self,
        qkv: &Vec<f32>,
        layout: HeadLayout,
        rows: &RowBatch,
        group: usize,
        pool: &mut ReferencePool,
        layer: usize,
    ) -> Result<()> {
        let dim = layout.head_dim;
        for (r, &cell) in rows.groups[group].store.iter().enumerate() {
            let row = &qkv[r * layout.stride()..][..layout.stride()];
            for head in 0..layout.kv_heads {
                let range = pool.range(cell as usize, head);
                let key = &row[layout.k_offset() + head * dim..][..dim];
                let value = &row[layout.v_offset() + head * dim..][..dim];
                let (k_format, v_format) = (pool.spec.k_format, pool.spec.v_format);
                let refused = |part| BackendError::NotFinite { part, layer, position: rows.positions[r] };
                through_format(k_format, key, &mut pool.keys[layer][range.clone()])
                    .map_err(|_| refused("key"))?;
                through_format(v_format, value, &mut pool.values[layer][range])
                    .map_err(|_| refused("value"))?;
            }
        }
        Ok(())
    }

    fn attention(
        &self,
        qkv: &Vec<f32>,
        attention: &Attention,
        rows: &RowBatch,
        pool: &ReferencePool,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let layout = attention.layout;
        let (dim, group) = (layout.head_dim, &rows.groups[attention.group]);
        for (r, &position) in rows.positions.iter().enumerate() {
            let position = position as usize;
            let first = attention.window.map_or(0, |w| (position + 1).saturating_sub(w));
            let cells: Vec<usize> =
                (first..=position).map(|p| group.cell(r, p, pool.spec.block_len)).collect();
            for head in 0..layout.heads {
                let kv_head = head * layout.kv_heads / layout.heads;
                let query = &qkv[r * layout.stride() + head * dim..][..dim];
                let keys = cells.iter().map(|&c| &pool.keys[attention.layer][pool.range(c, kv_head)]);
                let values = cells.iter().map(|&c| &pool.values[attention.layer][pool.range(c, kv_head)]);
                let out = &mut out[(r * layout.heads + head) * dim..][..dim];
                attend(query, keys, values, attention.scale, out);
            }
        }
        Ok(())
    }

    fn gated_activation(
        &self,
        gate: Columns<Vec<f32>>,
        up: Columns<Vec<f32>>,
        dims: Dims,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        for (r, out) in out.chunks_exact_mut(dims.cols).take(dims.rows).enumerate() {
            let gate = &gate.buffer[r * gate.stride + gate.offset..][..dims.cols];
            let up = &up.buffer[r * up.stride + up.offset..][..dims.cols];
            gated_activation(gate, up, out);
        }
        Ok(())
    }

    fn add_norm(
        &self,
        x: &mut Vec<f32>,
        y: &Vec<f32>,
        norm: Norm<Vec<f32>>,
        scale: Option<&Vec<f32>>,
        dims: Dims,
    ) -> Result<()> {
        for r in 0..dims.rows {
            let at = r * dims.cols..(r + 1) * dims.cols;
            let weight = norm.weight.map(|w| &w[..]);
            add_norm(&mut x[at.clone()], &y[at], weight, norm.eps, scale.map(|s| &s[..]));
        }
        Ok(())
    }

    fn route(
        &self,
        scores: &Vec<f32>,
        dims: Dims,
        top_k: usize,
        expert_scale: Option<&Vec<f32>>,
        routing: &mut ReferenceRouting,
    ) -> Result<()> {
        routing.top_k = top_k;
        routing.choices = Choices::default();
        for row in scores.chunks_exact(dims.cols).take(dims.rows) {
            for (expert, weight) in route(row, top_k, expert_scale.map(|s| &s[..])) {
                routing.choices.experts.push(expert);
                routing.choices.weights.push(weight);
            }
        }
        Ok(())
    }

    fn choices(&self, routing: &ReferenceRouting) -> Result<Choices> {
        Ok(routing.choices.clone())
    }

    fn expert_linear(
        &self,
        x: &Vec<f32>,
        input: ExpertInput,
        routing: &ReferenceRouting,
        matrices: &[&ReferenceMatrix],
        out: &mut Vec<f32>,
        out_stride: usize,
    ) -> Result<()> {
        for (choice, &expert) in routing.choices.experts.iter().enumerate() {
            let row = match input {
                ExpertInput::PerRow => choice / routing.top_k,
                ExpertInput::PerChoice => choice,
            };
            let mut column = choice * out_stride;
            for matrix in matrices {
                let input = &x[row * matrix.cols..][..matrix.cols];
                for n in 0..matrix.rows {
                    out[column] = dot(input, matrix.row(expert as usize * matrix.rows + n)) as f32;
                    column += 1;
                }
            }
        }
        Ok(())
    }

    fn combine(
        &self,
        y: &Vec<f32>,
        routing: &ReferenceRouting,
        cols: usize,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let n_rows = routing.choices.experts.len() / routing.top_k;
        out[..n_rows * cols].fill(0.0);
        for (choice, &weight) in routing.choices.weights.iter().enumerate() {
            let row = choice / routing.top_k;
            for i in 0..cols {
                out[row * cols + i] += weight * y[choice * cols + i];
            }
        }
        Ok(())
    }

    fn softcap(&self, x: &mut Vec<f32>, cap: f32, len: usize) -> Result<()> {
        softcap(&mut x[..len], cap);
        Ok(())
    }
}
