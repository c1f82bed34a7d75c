//! Rotary position embedding and per-head norms.

use super::Tolerance;
use super::compare::{close, same_bits};
use super::random::{Random, read, upload};
use crate::{Backend, HeadLayout, HeadNormRope, KeyValueNorm, ReferenceBackend, RowBatch, ValueSource};

/// [`Backend::rope_table`]: positions up to a long context, pairs that are not rotated.
pub fn rope_table<B: Backend>(backend: &B, tolerance: &Tolerance) {
    for half in [1, 4, 37, 128, 256] {
        let frequencies: Vec<f32> = (0..half)
            .map(|i| if i % 5 == 4 { 0.0 } else { 1e4f32.powf(-(i as f32) / half as f32) })
            .collect();
        let positions = [0, 1, 511, 262_143, 77];
        let (found, expected) =
            (table(backend, &positions, &frequencies), table(&ReferenceBackend, &positions, &frequencies));
        let what = format!("rope table of {half} pairs");
        close(&what, &found, &expected, |_| tolerance.relative);
        for (r, &position) in positions.iter().enumerate() {
            let alone = table(backend, &[position], &frequencies);
            same_bits(&format!("{what}, row {r} alone"), &alone, &found[r * 2 * half..(r + 1) * 2 * half]);
        }
    }
}

fn table<B: Backend>(backend: &B, positions: &[u32], frequencies: &[f32]) -> Vec<f32> {
    let batch = RowBatch { tokens: vec![0; positions.len()], positions: positions.to_vec(), groups: vec![] };
    let mut rows = B::Rows::default();
    backend.upload_rows(&batch, &mut rows).unwrap();
    let n = 2 * frequencies.len() * positions.len();
    let mut out = backend.buffer(n).unwrap();
    backend.rope_table(&rows, &upload(backend, frequencies), &mut out).unwrap();
    read(backend, &out, n)
}

/// [`Backend::head_norm_rope`]: every source of values, and layers without keys and values of their own.
pub fn head_norm_rope<B: Backend>(backend: &B, tolerance: &Tolerance) {
    let mut random = Random::new(31);
    let sources = [
        None,
        Some(ValueSource::Projected),
        Some(ValueSource::ProjectedNormed),
        Some(ValueSource::KeyNormed),
    ];
    for (heads, kv_heads, head_dim) in [(1, 1, 2), (4, 1, 256), (6, 2, 34), (8, 4, 80), (2, 2, 512)] {
        for source in sources {
            for n_rows in [1, 3, 40] {
                let layout = HeadLayout { heads, kv_heads, head_dim };
                let rows = random.activations(n_rows * layout.stride());
                let angles: Vec<f32> = random.normals(n_rows * head_dim / 2);
                let tables: Vec<f32> = angles
                    .chunks_exact(head_dim / 2)
                    .flat_map(|a| a.iter().map(|a| a.cos()).chain(a.iter().map(|a| a.sin())))
                    .collect();
                let norms = (random.normals(head_dim), random.normals(head_dim));
                let case = Heads { layout, rows: &rows, tables: &tables, norms: &norms, source };
                case.check(backend, tolerance, n_rows);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Heads<'a> {
    layout: HeadLayout,
    rows: &'a [f32],
    tables: &'a [f32],
    /// Of queries and keys.
    norms: &'a (Vec<f32>, Vec<f32>),
    source: Option<ValueSource>,
}

impl Heads<'_> {
    fn check<B: Backend>(&self, backend: &B, tolerance: &Tolerance, n_rows: usize) {
        let (found, expected) = (self.on(backend), self.on(&ReferenceBackend));
        let (dim, stride) = (self.layout.head_dim, self.layout.stride());
        let what =
            format!("head norm and rotation of {n_rows} rows of {:?}, values {:?}", self.layout, self.source);
        close(&what, &found, &expected, |i| {
            // A rotated element is made of two, whose magnitudes the pair keeps.
            let (head, at) = (i / dim * dim, i % dim);
            let pair = [expected[head + at % (dim / 2)], expected[head + at % (dim / 2) + dim / 2]];
            tolerance.relative * 2.0 * (pair[0].abs() + pair[1].abs())
        });
        for r in 0..n_rows {
            let row = r * stride..(r + 1) * stride;
            let tables = &self.tables[r * dim..(r + 1) * dim];
            let alone = Heads { rows: &self.rows[row.clone()], tables, ..*self };
            same_bits(&format!("{what}, row {r} alone"), &alone.on(backend), &found[row]);
        }
    }

    fn on<B: Backend>(&self, backend: &B) -> Vec<f32> {
        let mut rows = upload(backend, self.rows);
        let (q_norm, k_norm) = (upload(backend, &self.norms.0), upload(backend, &self.norms.1));
        let kv = self.source.map(|value| KeyValueNorm { k_norm: &k_norm, value });
        let rope = upload(backend, self.tables);
        let heads = HeadNormRope { layout: self.layout, q_norm: &q_norm, kv, rope: &rope, eps: 1e-6 };
        backend.head_norm_rope(&mut rows, self.rows.len() / self.layout.stride(), &heads).unwrap();
        read(backend, &rows, self.rows.len())
    }
}
