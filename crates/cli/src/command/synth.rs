//! `lapidary synth`, and the synthetic model of `lapidary bench`.

use std::io::Write;

use anyhow::{Context, Result};
use lapidary_convert::{Overrides, Report, SyntheticOptions, SyntheticTensor, plan_synthetic, synthesize};
use lapidary_gguf::Gguf;
use serde::Serialize;

use super::convert::{print, with_progress};
use crate::args::{SynthArgs, Synthetic};
use crate::output::{Table, bytes};

/// Writes a model of random weights.
pub fn run(args: SynthArgs) -> Result<()> {
    let mut options = SyntheticOptions::new(args.kind, args.file_type);
    options.overrides = Overrides::parse(&args.tensor)?;
    options.seed = args.seed;
    options.layers = args.layers;
    options.threads = args.threads.map_or(options.threads, usize::from);
    if args.dry_run {
        let (rows, report) = plan_synthetic(&options)?;
        return show(rows, report, args.json);
    }
    let report = with_progress(&options.cancel, |progress| synthesize(&args.out, &options, progress))?;
    print(&report, &args.out, args.json)
}

/// Makes a synthetic model that lasts as long as it is open.
pub fn temporary(synthetic: Synthetic) -> Result<Gguf> {
    let options = SyntheticOptions::new(synthetic.kind, synthetic.file_type);
    let (_, planned) = plan_synthetic(&options)?;
    let folder =
        tempfile::tempdir().context("cannot make a folder for temporary files; set TMPDIR to one")?;
    let (size, place) = (bytes(planned.bytes), folder.path().display());
    eprintln!("making a {} of random weights, {size}, in {place}", synthetic.kind);
    let path = folder.path().join(format!("{}.gguf", synthetic.kind));
    with_progress(&options.cancel, |progress| synthesize(&path, &options, progress))?;
    // The memory map keeps the file; its name goes with the folder.
    Ok(Gguf::open(&path)?)
}

#[derive(Serialize)]
struct Plan {
    rows: Vec<SyntheticTensor>,
    report: Report,
}

fn show(rows: Vec<SyntheticTensor>, report: Report, json: bool) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    if json {
        serde_json::to_writer(&mut stdout, &Plan { rows, report })?;
        return Ok(writeln!(stdout)?);
    }
    let mut table = Table::new(&["tensor", ">shape", "type", ">size"]);
    for row in rows {
        let shape: Vec<String> = row.shape.iter().map(u64::to_string).collect();
        table.row([row.name, shape.join(" x "), row.ty.to_owned(), bytes(row.bytes)]);
    }
    stdout.write_all(table.render().as_bytes())?;
    let (size, bits) = (bytes(report.bytes), report.bits_per_weight);
    writeln!(stdout, "{} tensors, {size}, {bits:.2} bits per weight", report.tensors)?;
    Ok(())
}
