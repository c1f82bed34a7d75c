//! `lapidary quantize`.

use std::io::Write;

use anyhow::Result;
use lapidary_convert::{Overrides, QuantizeOptions, QuantizePlan, plan_quantize, quantize};

use super::convert::{imatrix, print, threads, with_progress};
use crate::args::QuantizeArgs;
use crate::output::{Table, bytes, printable};

/// Writes a GGUF file in another type.
pub fn run(args: QuantizeArgs) -> Result<()> {
    let mut options = QuantizeOptions::default();
    options.overrides = Overrides::parse(&args.rounding.tensor)?;
    options.imatrix = imatrix(&args.rounding)?;
    options.threads = threads(&args.rounding, options.threads);
    if args.dry_run {
        return show(&plan_quantize(&args.input, args.file_type, &options)?, args.json);
    }
    let report = with_progress(&options.cancel, |progress| {
        quantize(&args.input, &args.out, args.file_type, &options, progress)
    })?;
    print(&report, &args.out, args.json)
}

fn show(plan: &QuantizePlan, json: bool) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    if json {
        serde_json::to_writer(&mut stdout, plan)?;
        return Ok(writeln!(stdout)?);
    }
    let mut table = Table::new(&["tensor", ">shape", "from", "to", ">size", ">bits", ""]);
    for row in &plan.rows {
        let shape: Vec<String> = row.shape.iter().map(u64::to_string).collect();
        table.row([
            printable(&row.name),
            shape.join(" x "),
            row.from.to_owned(),
            row.to.to_owned(),
            bytes(row.bytes),
            format!("{:.2}", row.bits_per_weight),
            row.fallback_from.map_or_else(String::new, |ty| format!("rows do not fit {ty}")),
        ]);
    }
    stdout.write_all(table.render().as_bytes())?;
    let (size, bits) = (bytes(plan.report.bytes), plan.report.bits_per_weight);
    writeln!(stdout, "{} tensors, {size}, {bits:.2} bits per weight", plan.report.tensors)?;
    plan.report.notes.iter().for_each(|note| eprintln!("note: {}", printable(note)));
    Ok(())
}
