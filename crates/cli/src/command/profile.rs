//! `lapidary profile`.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use lapidary_backend::profile::OperationTime;
use lapidary_backend::{Backend, Profiled};
use serde::Serialize;

use crate::args::ProfileArgs;
use crate::device::{Device, on_device};
use crate::interrupt;
use crate::load;
use crate::output::{Table, bytes};
use crate::workload::{Test, Workload};

#[derive(Serialize)]
struct Report {
    device: String,
    read_bandwidth_gb_per_s: f64,
    tests: Vec<TestReport>,
}

/// Where the time of one test went.
#[derive(Serialize)]
struct TestReport {
    test: String,
    depth: u32,
    batch: u32,
    /// Passes of the model.
    passes: usize,
    /// Time of the passes, from the clock.
    us: f64,
    /// Share of it in operations that stream weights, keys or values.
    streaming_share: f64,
    operations: Vec<Operation>,
}

#[derive(Serialize)]
struct Operation {
    name: String,
    /// Calls in a pass: layers, for an operation that each layer has once.
    layers: f64,
    calls: usize,
    us: f64,
    /// Share of the time of the passes.
    share: f64,
    bytes: u64,
    gb_per_s: f64,
    bandwidth_share: f64,
}

/// Shows where the time goes.
pub fn run(args: ProfileArgs) -> Result<()> {
    let cancel = interrupt::install()?;
    on_device!(&args.run, backend => profile(&args, Arc::new(Profiled::new(backend)), cancel))
}

fn profile<B: Device>(args: &ProfileArgs, backend: Arc<Profiled<B>>, cancel: &AtomicBool) -> Result<()> {
    let loaded = match args.synthetic {
        Some(synthetic) => {
            load::load_from(&args.run, Arc::clone(&backend), || super::synth::temporary(synthetic))?
        }
        None => load::load(&args.run, Arc::clone(&backend))?,
    };
    let (prompt, generated) = (args.prompt as usize, args.r#gen as usize);
    if prompt == 0 && generated == 0 {
        bail!("both --prompt and --gen are 0: nothing to profile");
    }
    let bandwidth = backend.bandwidth()?;
    let mut workload = Workload::new(&args.run, &loaded);
    let mut tests = Vec::new();
    let wanted = [(Test::Prompt(prompt), 1), (Test::Generate(generated), args.batch)];
    for (test, batch) in wanted {
        if matches!(test, Test::Prompt(0) | Test::Generate(0)) || cancel.load(Relaxed) {
            continue;
        }
        let mut bases = workload.bases(test, args.depth as usize, batch as usize)?;
        // The first run warms caches and is dropped.
        workload.once(test, &mut bases)?;
        backend.take();
        let begin = Instant::now();
        workload.once(test, &mut bases)?;
        let elapsed = begin.elapsed();
        tests.push(summarise(test, (args.depth, batch), elapsed, backend.take(), bandwidth));
    }
    let report = Report { device: backend.name(), read_bandwidth_gb_per_s: bandwidth / 1e9, tests };
    let mut stdout = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &report)?;
        return Ok(writeln!(stdout)?);
    }
    eprintln!("{}; read bandwidth {:.1} GB/s", report.device, report.read_bandwidth_gb_per_s);
    for test in &report.tests {
        stdout.write_all(table(test).as_bytes())?;
    }
    Ok(())
}

fn summarise(
    test: Test,
    (depth, batch): (u32, u32),
    elapsed: Duration,
    operations: Vec<OperationTime>,
    bandwidth: f64,
) -> TestReport {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let passes = match test {
        Test::Prompt(n) => n.div_ceil(lapidary_engine::DEFAULT_BATCH),
        Test::Generate(n) => n,
    };
    let streaming: Duration = operations.iter().filter(|o| o.bytes > 0).map(|o| o.time).sum();
    let mut operations: Vec<Operation> = operations
        .into_iter()
        .map(|o| {
            let rate = o.bytes as f64 / o.time.as_secs_f64().max(1e-9);
            Operation {
                name: o.name,
                layers: o.calls as f64 / passes as f64,
                calls: o.calls,
                us: us(o.time),
                share: o.time.as_secs_f64() / elapsed.as_secs_f64(),
                bytes: o.bytes,
                gb_per_s: rate / 1e9,
                bandwidth_share: rate / bandwidth,
            }
        })
        .collect();
    operations.sort_by(|a, b| b.us.total_cmp(&a.us));
    TestReport {
        test: test.name(),
        depth,
        batch,
        passes,
        us: us(elapsed),
        streaming_share: streaming.as_secs_f64() / elapsed.as_secs_f64(),
        operations,
    }
}

/// One line an operation, the slowest first, in units of one pass.
fn table(test: &TestReport) -> String {
    let passes = test.passes as f64;
    let mut table =
        Table::new(&["operation", ">calls/pass", ">us/pass", ">time", ">bytes/pass", ">GB/s", ">bandwidth"]);
    let mut rest = test.us;
    for o in &test.operations {
        rest -= o.us;
        let streams = o.bytes > 0;
        let streamed = |text: String| if streams { text } else { String::new() };
        table.row([
            o.name.clone(),
            format!("{:.0}", o.layers),
            format!("{:.0}", o.us / passes),
            format!("{:.1} %", 100.0 * o.share),
            streamed(bytes((o.bytes as f64 / passes) as u64)),
            streamed(format!("{:.1}", o.gb_per_s)),
            streamed(format!("{:.0} %", 100.0 * o.bandwidth_share)),
        ]);
    }
    table.row([
        "(between operations)".to_owned(),
        String::new(),
        format!("{:.0}", rest / passes),
        format!("{:.1} %", 100.0 * rest / test.us),
        String::new(),
        String::new(),
        String::new(),
    ]);
    format!(
        "\n{} at depth {}, batch {}: {} passes of {:.0} us, {:.1} % of it streaming weights, keys and values\n\n{}",
        test.test,
        test.depth,
        test.batch,
        test.passes,
        test.us / passes,
        100.0 * test.streaming_share,
        table.render()
    )
}
