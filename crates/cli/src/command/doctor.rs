//! `lapidary doctor`.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use lapidary_backend::{Backend, KvFormat};
use lapidary_cpu::{CpuBackend, CpuConfig};
use lapidary_engine::Config;
use lapidary_engine::model::Traffic;
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::load;
use crate::output::{Table, bytes};

#[derive(Serialize)]
struct Check {
    check: &'static str,
    ok: bool,
    finding: String,
}

/// Checks this machine, and a model file.
pub fn run(args: DoctorArgs) -> Result<()> {
    let mut checks = machine();
    if let Some(path) = &args.model {
        checks.extend(model(path));
    }
    let failed = checks.iter().filter(|c| !c.ok).count();
    let mut stdout = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &serde_json::json!({ "checks": checks, "failed": failed }))?;
        writeln!(stdout)?;
    } else {
        let mut table = Table::new(&["check", "", "finding"]);
        for check in checks {
            let mark = if check.ok { "ok" } else { "FAIL" };
            table.row([check.check.to_owned(), mark.to_owned(), check.finding]);
        }
        stdout.write_all(table.render().as_bytes())?;
    }
    if failed > 0 { bail!("{failed} checks failed") } else { Ok(()) }
}

fn ok(check: &'static str, finding: String) -> Check {
    Check { check, ok: true, finding }
}

fn machine() -> Vec<Check> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let backend = CpuBackend::new(CpuConfig { threads: cores, ..CpuConfig::default() });
    let bandwidth = backend.read_bandwidth();
    let mut checks = vec![
        ok("version", format!("lapidary {}", env!("CARGO_PKG_VERSION"))),
        ok("processor", backend.name()),
        ok("memory", memory()),
        ok("read bandwidth", format!("{:.1} GB/s with {cores} threads", bandwidth / 1e9)),
    ];
    checks.push(match lapidary_cpu::self_test() {
        Ok(kernels) => ok("kernels", format!("{kernels} products equal the scalar reference bit for bit")),
        Err(finding) => Check { check: "kernels", ok: false, finding },
    });
    checks
}

/// Total and available memory, from the kernel's own account.
fn memory() -> String {
    match crate::memory::of_machine() {
        Some((total, available)) => format!("{} available of {}", bytes(available), bytes(total)),
        None => "this system does not tell".to_owned(),
    }
}

fn model(path: &Path) -> Vec<Check> {
    match model_checks(path) {
        Ok(checks) => checks,
        Err(error) => vec![Check { check: "model", ok: false, finding: error.to_string() }],
    }
}

fn model_checks(path: &Path) -> Result<Vec<Check>> {
    let gguf = load::open(path)?;
    let config = Config::from_gguf(&gguf)?;
    for tensor in gguf.tensors() {
        tensor.ty()?;
    }
    let layers = config.layers.len();
    let size = bytes(gguf.file_bytes());
    let tokens = match load::tokenizer(&gguf)? {
        Some(tokenizer) => format!("{} tokens", tokenizer.n_tokens()),
        None => "no tokenizer".to_owned(),
    };
    let traffic = Traffic::new(&gguf, &config, KvFormat::F16, KvFormat::F16);
    let token = bytes(traffic.decode_bytes_per_token(1, 0));
    let cache = bytes(traffic.cache_bytes(4096));
    Ok(vec![
        ok("model", format!("{} with {layers} layers, {size}", config.architecture.name())),
        ok("tokenizer", tokens),
        ok("weights read a token", token),
        ok("cache at 4096 positions", format!("{cache} in f16")),
    ])
}
