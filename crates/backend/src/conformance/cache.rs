//! A cache filled with known vectors, and copies inside it.

use super::Tolerance;
use super::compare::{close, same_bits};
use super::random::{Random, read, upload};
use crate::{
    Attention, Backend, BackendError, GroupRows, HeadLayout, KvFormat, KvPoolSpec, ReferenceBackend,
    RowBatch, RowView,
};

/// Every pair of key and value formats.
pub(super) fn format_pairs(head_dim: usize) -> Vec<(KvFormat, KvFormat)> {
    let formats: Vec<KvFormat> = KvFormat::ALL.into_iter().filter(|f| f.supports(head_dim)).collect();
    formats.iter().flat_map(|&k| formats.iter().map(move |&v| (k, v))).collect()
}

/// Stores rows of query, key and value columns in `cells` of a layer.
pub(super) fn store<B: Backend>(
    backend: &B,
    pool: &mut B::KvPool,
    layout: HeadLayout,
    layer: usize,
    qkv: &[f32],
    cells: &[u32],
) {
    if cells.is_empty() {
        return;
    }
    let group = GroupRows { store: cells.to_vec(), ..GroupRows::default() };
    let batch = RowBatch {
        tokens: vec![0; cells.len()],
        positions: vec![0; cells.len()],
        groups: vec![GroupRows::default(), group],
    };
    let mut rows = B::Rows::default();
    backend.upload_rows(&batch, &mut rows).unwrap();
    backend.kv_store(&upload(backend, qkv), layout, &rows, 1, pool, layer).unwrap();
}

/// Attends the rows of a batch whose addresses are its second group.
pub(super) fn attend<B: Backend>(
    backend: &B,
    pool: &B::KvPool,
    attention: &Attention,
    qkv: &[f32],
    batch: &RowBatch,
) -> Vec<f32> {
    let mut rows = B::Rows::default();
    backend.upload_rows(batch, &mut rows).unwrap();
    let n = batch.len() * attention.layout.heads * attention.layout.head_dim;
    let mut out = backend.buffer(n).unwrap();
    backend.attention(&upload(backend, qkv), attention, &rows, pool, &mut out).unwrap();
    read(backend, &out, n)
}

/// [`Backend::kv_copy`] and [`Backend::kv_reserve`]: copies follow each other, inside a block and between blocks,
/// in all layers; growing keeps what is stored.
pub fn kv_copy<B: Backend>(backend: &B, tolerance: &Tolerance) {
    for head_dim in [34, 96] {
        for (k_format, v_format) in format_pairs(head_dim) {
            copies::<B>(backend, tolerance, head_dim, (k_format, v_format));
        }
    }
}

fn copies<B: Backend>(
    backend: &B,
    tolerance: &Tolerance,
    head_dim: usize,
    (k_format, v_format): (KvFormat, KvFormat),
) {
    let layout = HeadLayout { heads: 2, kv_heads: 2, head_dim };
    let spec = KvPoolSpec { layers: 2, kv_heads: 2, head_dim, k_format, v_format, block_len: 8 };
    for layer in 0..2 {
        let found = copied(backend, spec, layout, layer);
        let expected = copied(&ReferenceBackend, spec, layout, layer);
        let what = format!("copied cells of layer {layer}, keys {k_format}, values {v_format}");
        close(&what, &found, &expected, |_| 20.0 * tolerance.relative);
    }
}

/// [`Backend::kv_export`] and [`Backend::kv_import`]: a block that went out and in again elsewhere attends as before,
/// and bytes that are no block are refused.
pub fn kv_blocks_travel<B: Backend>(backend: &B, _: &Tolerance) {
    for (k_format, v_format) in format_pairs(64) {
        let layout = HeadLayout { heads: 2, kv_heads: 2, head_dim: 64 };
        let spec = KvPoolSpec { layers: 2, kv_heads: 2, head_dim: 64, k_format, v_format, block_len: 8 };
        let mut random = Random::new(52);
        let mut pool = backend.kv_pool(spec).unwrap();
        backend.kv_reserve(&mut pool, 2).unwrap();
        for layer in 0..2 {
            let qkv = random.normals(8 * layout.stride());
            store(backend, &mut pool, layout, layer, &qkv, &[8, 9, 10, 11, 12, 13, 14, 15]);
        }
        let mut bytes = vec![7];
        backend.kv_export(&pool, 1, &mut bytes).unwrap();
        let mut other = backend.kv_pool(spec).unwrap();
        backend.kv_reserve(&mut other, 3).unwrap();
        backend.kv_import(&mut other, 2, &bytes[1..]).unwrap();
        let query = random.normals(layout.stride());
        for layer in 0..2 {
            let attention = Attention { layout, scale: 0.2, window: None, group: 1, layer };
            let on = |pool: &B::KvPool, block: u32| {
                let view = RowView { shared: 8, ..RowView::default() };
                let group = GroupRows { views: vec![view], blocks: vec![block], ..GroupRows::default() };
                let groups = vec![GroupRows::default(), group];
                attend(
                    backend,
                    pool,
                    &attention,
                    &query,
                    &RowBatch { tokens: vec![0], positions: vec![7], groups },
                )
            };
            let what = format!("layer {layer} of a block elsewhere, keys {k_format}, values {v_format}");
            same_bits(&what, &on(&other, 2), &on(&pool, 1));
        }
        // A block whose memory was given back takes new contents.
        backend.kv_free(&mut other, &[0, 2]).unwrap();
        backend.kv_import(&mut other, 2, &bytes[1..]).unwrap();
        let cells: Vec<(u32, u32)> = (0..8).map(|i| (16 + i, i)).collect();
        backend.kv_copy(&mut other, &cells).unwrap();
        let mut again = Vec::new();
        backend.kv_export(&other, 0, &mut again).unwrap();
        assert_eq!(again, bytes[1..], "a block copied to where memory was given back");
        for wrong in [&bytes[..], &bytes[2..], &[]] {
            let result = backend.kv_import(&mut other, 0, wrong);
            assert!(matches!(result, Err(BackendError::BlockSize { .. })), "{result:?}");
        }
    }
}

/// [`Backend::kv_store`] in the TurboQuant formats: an infinite or undefined key or value is an error, at the latest
/// when something is downloaded.
pub fn kv_store_refuses_undefined<B: Backend>(backend: &B, _: &Tolerance) {
    let layout = HeadLayout { heads: 2, kv_heads: 2, head_dim: 32 };
    let turbo = || KvFormat::ALL.into_iter().filter(|f| f.turbo_bits().is_some());
    for (k_format, v_format) in turbo().map(|f| (f, KvFormat::F16)).chain(turbo().map(|f| (KvFormat::F32, f)))
    {
        let spec = KvPoolSpec { layers: 2, kv_heads: 2, head_dim: 32, k_format, v_format, block_len: 8 };
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut pool = backend.kv_pool(spec).unwrap();
            backend.kv_reserve(&mut pool, 1).unwrap();
            let mut qkv = Random::new(51).normals(2 * layout.stride());
            let column = if v_format == KvFormat::F16 { layout.k_offset() } else { layout.v_offset() };
            qkv[layout.stride() + column + 35] = bad;
            let group = GroupRows { store: vec![2, 5], ..GroupRows::default() };
            let batch = RowBatch { tokens: vec![0; 2], positions: vec![70, 71], groups: vec![group] };
            let mut rows = B::Rows::default();
            backend.upload_rows(&batch, &mut rows).unwrap();
            let qkv = upload(backend, &qkv);
            let result = backend.kv_store(&qkv, layout, &rows, 0, &mut pool, 1);
            let result = result.and_then(|()| backend.download(&qkv, 0..1, &mut [0.0]));
            let part = if v_format == KvFormat::F16 { "key" } else { "value" };
            assert!(
                matches!(&result, Err(BackendError::NotFinite { part: p, layer: 1, position: 71 }) if *p == part),
                "{bad} in a {part}, keys {k_format}, values {v_format}: {result:?}"
            );
        }
    }
}

/// Attention of one row over three cells that were copied about.
fn copied<B: Backend>(backend: &B, spec: KvPoolSpec, layout: HeadLayout, layer: usize) -> Vec<f32> {
    let mut random = Random::new(50);
    let mut pool = backend.kv_pool(spec).unwrap();
    backend.kv_reserve(&mut pool, 2).unwrap();
    for layer in 0..2 {
        let qkv = random.normals(4 * layout.stride());
        store(backend, &mut pool, layout, layer, &qkv, &[0, 3, 9, 14]);
    }
    backend.kv_reserve(&mut pool, 5).unwrap();
    backend.kv_reserve(&mut pool, 1).unwrap();
    backend.kv_copy(&mut pool, &[(0, 39), (39, 5), (3, 0), (9, 20), (14, 15), (20, 21)]).unwrap();
    let group = GroupRows {
        views: vec![RowView { tail: 1, ..RowView::default() }],
        tails: vec![99, 5, 0, 21, 15],
        ..GroupRows::default()
    };
    let batch = RowBatch { tokens: vec![0], positions: vec![3], groups: vec![GroupRows::default(), group] };
    let attention = Attention { layout, scale: 0.2, window: None, group: 1, layer };
    attend(backend, &pool, &attention, &random.normals(layout.stride()), &batch)
}
