//! `lapidary bench`.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use lapidary_engine::model::Traffic;
use lapidary_engine::{Batch, DEFAULT_BATCH, KvCache, KvCacheConfig, NoProbe, SequenceId, Want, Workspace};
use serde::Serialize;

use crate::args::BenchArgs;
use crate::device::{Device, on_device};
use crate::interrupt;
use crate::load::{self, Loaded};
use crate::output::{Table, bytes};

#[derive(Serialize)]
struct Report {
    device: String,
    read_bandwidth_gb_per_s: f64,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    test: String,
    depth: u32,
    batch: u32,
    tokens_per_s: Spread,
    bytes_per_token: u64,
    bandwidth_share: f64,
}

#[derive(Serialize)]
struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

/// Measures prompt and generation speed.
pub fn run(args: BenchArgs) -> Result<()> {
    let cancel = interrupt::install()?;
    on_device!(&args.run, backend => measure(&args, backend, cancel))
}

fn measure<B: Device>(args: &BenchArgs, backend: Arc<B>, cancel: &AtomicBool) -> Result<()> {
    let loaded = match args.synthetic {
        Some(synthetic) => load::load_from(&args.run, backend, || super::synth::temporary(synthetic))?,
        None => load::load(&args.run, backend)?,
    };
    let mut bench = Bench::new(args, &loaded);
    let (prompt, generated) = (args.prompt as usize, args.r#gen as usize);
    if prompt == 0 && generated == 0 {
        bail!("both --prompt and --gen are 0: nothing to measure");
    }
    let bandwidth = loaded.model.backend().bandwidth()?;
    let mut rows = Vec::new();
    let interrupted = || cancel.load(Ordering::Relaxed);
    for &depth in &args.depth {
        if prompt > 0 && !interrupted() {
            rows.push(bench.measure(Test::Prompt(prompt), depth, 1, bandwidth)?);
        }
        for &batch in args.batch.iter().filter(|_| generated > 0) {
            if !interrupted() {
                rows.push(bench.measure(Test::Generate(generated), depth, batch, bandwidth)?);
            }
        }
    }
    report(args, &loaded, rows, bandwidth)
}

#[derive(Clone, Copy)]
enum Test {
    Prompt(usize),
    Generate(usize),
}

struct Bench<'a, B: Device> {
    args: &'a BenchArgs,
    loaded: &'a Loaded<B>,
    traffic: Traffic,
    workspace: Workspace<B>,
    /// State of a small generator of token ids; what the ids are does not matter, only that they differ.
    ids: u64,
}

impl<'a, B: Device> Bench<'a, B> {
    fn new(args: &'a BenchArgs, loaded: &'a Loaded<B>) -> Self {
        let kv = &args.run.kv;
        let (k_format, v_format) = kv.formats(loaded.model.config(), B::PREFERRED_KV);
        let traffic = Traffic::new(&loaded.gguf, loaded.model.config(), k_format, v_format);
        Self { args, loaded, traffic, workspace: Workspace::new(), ids: 1 }
    }

    fn measure(&mut self, test: Test, depth: u32, batch: u32, bandwidth: f64) -> Result<Row> {
        let n = match test {
            Test::Prompt(n) | Test::Generate(n) => n,
        };
        let kv = &self.args.run.kv;
        let (k_format, v_format) = kv.formats(self.loaded.model.config(), B::PREFERRED_KV);
        let budget = load::kv_budget(self.loaded, kv.kv_memory);
        let config = KvCacheConfig { k_format, v_format, context: depth as usize + n, budget };
        let model = &self.loaded.model;
        let mut cache = KvCache::new(Arc::clone(model.backend()), model.config(), config)?;
        // What lies at the depth is made once; each run goes on from a fork of it.
        let bases: Vec<SequenceId> = (0..batch).map(|_| cache.create()).collect();
        for &base in &bases {
            self.feed(&mut cache, base, depth as usize)?;
        }
        let mut speeds = Vec::new();
        // One run more than asked for: the first warms caches and is dropped.
        for run in 0..=self.args.repeat {
            let sequences: Vec<SequenceId> = bases.iter().map(|&base| cache.fork(base)).collect();
            let speed = self.once(test, &mut cache, &sequences)?;
            sequences.into_iter().for_each(|id| cache.release(id));
            if run > 0 {
                speeds.push(speed);
            }
        }
        speeds.sort_by(f64::total_cmp);
        let median = speeds[speeds.len() / 2];
        let (name, bytes) = match test {
            Test::Prompt(n) => (format!("pp{n}"), self.traffic.prompt_bytes_per_token(n.min(DEFAULT_BATCH))),
            Test::Generate(n) => {
                let depth = depth as usize + n / 2;
                (format!("tg{n}"), self.traffic.decode_bytes_per_token(batch as usize, depth))
            }
        };
        Ok(Row {
            test: name,
            depth,
            batch,
            tokens_per_s: Spread { min: speeds[0], median, max: speeds[speeds.len() - 1] },
            bytes_per_token: bytes,
            bandwidth_share: median * bytes as f64 / bandwidth,
        })
    }

    /// Tokens a second of one run.
    fn once(&mut self, test: Test, cache: &mut KvCache<B>, sequences: &[SequenceId]) -> Result<f64> {
        let begin = Instant::now();
        let tokens = match test {
            Test::Prompt(n) => {
                self.feed(cache, sequences[0], n)?;
                n
            }
            Test::Generate(n) => {
                for _ in 0..n {
                    let mut rows = Batch::new();
                    sequences.iter().for_each(|&s| rows.push(s, self.token(), Want::Logits));
                    self.loaded.model.forward(&rows, cache, &mut self.workspace, &mut NoProbe)?;
                }
                n * sequences.len()
            }
        };
        Ok(tokens as f64 / begin.elapsed().as_secs_f64())
    }

    fn feed(&mut self, cache: &mut KvCache<B>, sequence: SequenceId, n: usize) -> Result<()> {
        let tokens: Vec<u32> = (0..n).map(|_| self.token()).collect();
        for chunk in tokens.chunks(DEFAULT_BATCH) {
            let mut rows = Batch::new();
            rows.extend(sequence, chunk, Want::Logits);
            self.loaded.model.forward(&rows, cache, &mut self.workspace, &mut NoProbe)?;
        }
        Ok(())
    }

    fn token(&mut self) -> u32 {
        self.ids = self.ids.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.ids >> 33) as u32 % self.loaded.model.config().vocab as u32
    }
}

fn report<B: Device>(args: &BenchArgs, loaded: &Loaded<B>, rows: Vec<Row>, bandwidth: f64) -> Result<()> {
    let device = loaded.model.backend().name();
    let mut stdout = std::io::stdout().lock();
    if args.json {
        let report = Report { device, read_bandwidth_gb_per_s: bandwidth / 1e9, rows };
        serde_json::to_writer(&mut stdout, &report)?;
        return Ok(writeln!(stdout)?);
    }
    eprintln!("{device}; read bandwidth {:.1} GB/s", bandwidth / 1e9);
    let mut table = Table::new(&[
        "test",
        ">depth",
        ">batch",
        ">t/s min",
        ">median",
        ">max",
        ">bytes/token",
        ">bandwidth",
    ]);
    for row in rows {
        let speed = |x: f64| format!("{x:.1}");
        table.row([
            row.test,
            row.depth.to_string(),
            row.batch.to_string(),
            speed(row.tokens_per_s.min),
            speed(row.tokens_per_s.median),
            speed(row.tokens_per_s.max),
            bytes(row.bytes_per_token),
            format!("{:.0} %", 100.0 * row.bandwidth_share),
        ]);
    }
    Ok(stdout.write_all(table.render().as_bytes())?)
}
