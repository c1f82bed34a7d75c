//! `lapidary bench`.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::args::BenchArgs;
use crate::device::{Device, on_device};
use crate::interrupt;
use crate::load::{self, Loaded};
use crate::output::{Table, bytes};
use crate::screened::ScreenReport;
use crate::workload::{Test, Workload};

#[derive(Serialize)]
struct Report {
    device: String,
    read_bandwidth_gb_per_s: f64,
    rows: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    screened_head: Option<ScreenReport>,
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
    let mut workload = Workload::new(&args.run, &loaded);
    let (prompt, generated) = (args.prompt as usize, args.r#gen as usize);
    if prompt == 0 && generated == 0 {
        bail!("both --prompt and --gen are 0: nothing to measure");
    }
    let bandwidth = loaded.model.backend().bandwidth()?;
    let mut rows = Vec::new();
    let interrupted = || cancel.load(Ordering::Relaxed);
    for &depth in &args.depth {
        if prompt > 0 && !interrupted() {
            let test = (Test::Prompt(prompt), depth, 1);
            rows.push(measure_test(args, &mut workload, test, bandwidth)?);
        }
        for &batch in args.batch.iter().filter(|_| generated > 0) {
            if !interrupted() {
                let test = (Test::Generate(generated), depth, batch);
                rows.push(measure_test(args, &mut workload, test, bandwidth)?);
            }
        }
    }
    report(args, &loaded, rows, bandwidth)
}

/// Speed of one test.
fn measure_test<B: Device>(
    args: &BenchArgs,
    workload: &mut Workload<B>,
    (test, depth, batch): (Test, u32, u32),
    bandwidth: f64,
) -> Result<Row> {
    let mut bases = workload.bases(test, depth as usize, batch as usize)?;
    let mut speeds = Vec::new();
    // One run more than asked for: the first warms caches and is dropped.
    for run in 0..=args.repeat {
        let begin = Instant::now();
        let tokens = workload.once(test, &mut bases)?;
        if run > 0 {
            speeds.push(tokens as f64 / begin.elapsed().as_secs_f64());
        }
    }
    speeds.sort_by(f64::total_cmp);
    let median = speeds[speeds.len() / 2];
    let bytes = workload.bytes_per_token(test, depth as usize, batch as usize);
    Ok(Row {
        test: test.name(),
        depth,
        batch,
        tokens_per_s: Spread { min: speeds[0], median, max: speeds[speeds.len() - 1] },
        bytes_per_token: bytes,
        bandwidth_share: median * bytes as f64 / bandwidth,
    })
}

fn report<B: Device>(args: &BenchArgs, loaded: &Loaded<B>, rows: Vec<Row>, bandwidth: f64) -> Result<()> {
    let device = loaded.model.backend().name();
    let screened_head = ScreenReport::of(loaded.model.screen_stats());
    let mut stdout = std::io::stdout().lock();
    if args.json {
        let report = Report { device, read_bandwidth_gb_per_s: bandwidth / 1e9, rows, screened_head };
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
    stdout.write_all(table.render().as_bytes())?;
    if let Some(screened) = screened_head {
        eprintln!("{screened}");
    }
    Ok(())
}
