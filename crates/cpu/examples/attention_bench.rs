//! Speed of attention: decoding at several depths as bytes of keys and values read a second, beside the machine's
//! read bandwidth, and prompts as multiply-adds a second.
//!
//! `cargo run --release -p lapidary-cpu --example attention_bench [threads] [instruction set]`
//!
//! With one thread on Linux, processor time is measured, which other processes disturb less.

use lapidary_backend::{Attention, Backend, GroupRows, HeadLayout, KvFormat, KvPoolSpec, RowBatch, RowView};
use lapidary_cpu::{CpuBackend, CpuConfig, Isa};

const BLOCK_LEN: usize = 32;
/// Memory that a decoding run walks through, so that keys and values come from memory and not from a cache.
const WORKING_SET: usize = 400 << 20;
const RUNS: usize = 5;

fn main() {
    let threads = std::env::args().nth(1).map_or(2, |n| n.parse().expect("a number of threads"));
    let wanted = std::env::args().nth(2);
    let clock = Clock { processor: threads == 1 };
    for isa in Isa::available() {
        if wanted.as_ref().map_or(isa == Isa::PORTABLE, |name| name != isa.name()) {
            continue;
        }
        let backend = CpuBackend::new(CpuConfig { threads, isa, ..CpuConfig::default() });
        let bandwidth = backend.read_bandwidth();
        println!("{}: reads {:.1} GB/s", backend.name(), bandwidth / 1e9);
        let small = HeadLayout { heads: 4, kv_heads: 1, head_dim: 256 };
        let large = HeadLayout { heads: 16, kv_heads: 2, head_dim: 512 };
        for format in KvFormat::ALL {
            for (layout, depth) in [(small, 128), (small, 512), (small, 4096), (small, 16384), (large, 4096)]
            {
                decode(&backend, clock, layout, format, depth, bandwidth);
            }
            for (layout, depth, window) in
                [(small, 0, None), (small, 4096, None), (small, 4096, Some(512)), (large, 0, None)]
            {
                prompt(&backend, clock, layout, format, depth, window);
            }
        }
    }
}

/// One row at `depth`, the layers of a pool in turn.
fn decode(
    backend: &CpuBackend,
    clock: Clock,
    layout: HeadLayout,
    format: KvFormat,
    depth: usize,
    bandwidth: f64,
) {
    let bytes = 2 * depth * layout.kv_heads * format.vector_bytes(layout.head_dim);
    let layers = (WORKING_SET / bytes).clamp(1, 400);
    let cache = Cache::new(backend, layout, format, layers, depth);
    let (rows, qkv, mut out) = cache.rows(backend, depth - 1, 1);
    let mut times = Vec::new();
    for run in 0..=RUNS {
        let begin = clock.now();
        for layer in 0..layers {
            let attention = Attention { layout, scale: 0.06, window: None, group: 0, layer };
            backend.attention(&qkv, &attention, &rows, &cache.pool, &mut out).unwrap();
        }
        if run > 0 {
            times.push((clock.now() - begin) / layers as f64);
        }
    }
    let time = median(times);
    let speed = bytes as f64 / time;
    println!(
        "  decode {:2}/{} heads of {} {format} depth {depth:5}: {:8.1} us, {:5.1} GB/s, {:3.0} % of bandwidth",
        layout.heads,
        layout.kv_heads,
        layout.head_dim,
        time * 1e6,
        speed / 1e9,
        100.0 * speed / bandwidth
    );
}

/// 512 rows after `depth` positions.
fn prompt(
    backend: &CpuBackend,
    clock: Clock,
    layout: HeadLayout,
    format: KvFormat,
    depth: usize,
    window: Option<usize>,
) {
    const ROWS: usize = 512;
    let cache = Cache::new(backend, layout, format, 1, depth + ROWS);
    let (rows, qkv, mut out) = cache.rows(backend, depth, ROWS);
    let attention = Attention { layout, scale: 0.06, window, group: 0, layer: 0 };
    let mut times = Vec::new();
    for run in 0..=RUNS {
        let begin = clock.now();
        backend.attention(&qkv, &attention, &rows, &cache.pool, &mut out).unwrap();
        if run > 0 {
            times.push(clock.now() - begin);
        }
    }
    let time = median(times);
    let seen: usize = (depth..depth + ROWS).map(|t| window.map_or(t + 1, |w| w.min(t + 1))).sum();
    let operations = 4 * seen * layout.heads * layout.head_dim;
    println!(
        "  prompt {:2}/{} heads of {} {format} depth {depth:5}, window {window:?}: {:8.2} ms, {:6.1} GFLOP/s",
        layout.heads,
        layout.kv_heads,
        layout.head_dim,
        time * 1e3,
        operations as f64 / time / 1e9
    );
}

/// Seconds of the wall clock, or of the calling thread on a processor.
#[derive(Clone, Copy)]
struct Clock {
    processor: bool,
}

impl Clock {
    fn now(self) -> f64 {
        let account = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let nanoseconds = account.split(' ').next().and_then(|n| n.parse::<f64>().ok());
        match nanoseconds {
            Some(nanoseconds) if self.processor => nanoseconds / 1e9,
            _ => std::time::UNIX_EPOCH.elapsed().map_or(0.0, |d| d.as_secs_f64()),
        }
    }
}

struct Cache {
    layout: HeadLayout,
    pool: <CpuBackend as Backend>::KvPool,
    n_blocks: usize,
}

impl Cache {
    /// `layers` layers of `n` positions of small numbers, blocks in order.
    fn new(backend: &CpuBackend, layout: HeadLayout, format: KvFormat, layers: usize, n: usize) -> Self {
        let (kv_heads, head_dim) = (layout.kv_heads, layout.head_dim);
        let spec = KvPoolSpec {
            layers,
            kv_heads,
            head_dim,
            k_format: format,
            v_format: format,
            block_len: BLOCK_LEN,
        };
        let mut pool = backend.kv_pool(spec).unwrap();
        let n_blocks = n.div_ceil(BLOCK_LEN);
        backend.kv_reserve(&mut pool, n_blocks).unwrap();
        let values: Vec<f32> = (0..layout.stride()).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5).collect();
        let mut qkv = backend.buffer(layout.stride()).unwrap();
        backend.upload(&values, &mut qkv, 0).unwrap();
        for cell in 0..n as u32 {
            let group = GroupRows { store: vec![cell], ..GroupRows::default() };
            let rows = RowBatch { tokens: vec![0], positions: vec![0], groups: vec![group] };
            for layer in 0..layers {
                backend.kv_store(&qkv, layout, &rows, 0, &mut pool, layer).unwrap();
            }
        }
        Self { layout, pool, n_blocks }
    }

    /// `n` rows from position `first` on, with their queries and room for their output.
    fn rows(
        &self,
        backend: &CpuBackend,
        first: usize,
        n: usize,
    ) -> (RowBatch, <CpuBackend as Backend>::Buffer, <CpuBackend as Backend>::Buffer) {
        let positions: Vec<u32> = (first as u32..).take(n).collect();
        let views = positions.iter().map(|&p| RowView { shared: p + 1, ..RowView::default() }).collect();
        let blocks = (0..self.n_blocks as u32).collect();
        let group = GroupRows { store: vec![0; n], views, blocks, tails: vec![] };
        let values: Vec<f32> =
            (0..n * self.layout.stride()).map(|i| (i * 53 % 97) as f32 / 97.0 - 0.5).collect();
        let mut qkv = backend.buffer(values.len()).unwrap();
        backend.upload(&values, &mut qkv, 0).unwrap();
        let out = backend.buffer(n * self.layout.heads * self.layout.head_dim).unwrap();
        (RowBatch { tokens: vec![0; n], positions, groups: vec![group] }, qkv, out)
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
