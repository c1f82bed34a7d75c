//! `lapidary convert`, and what it shares with `lapidary quantize`.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use lapidary_convert::{Cancel, ConvertOptions, Imatrix, Overrides, Progress, Report, convert};

use crate::args::{ConvertArgs, RoundingArgs};
use crate::interrupt;
use crate::output::{bytes, printable};

/// Makes a GGUF file of a Hugging Face folder.
pub fn run(args: ConvertArgs) -> Result<()> {
    let mut options = ConvertOptions::new(args.file_type);
    options.overrides = Overrides::parse(&args.rounding.tensor)?;
    options.imatrix = imatrix(&args.rounding)?;
    options.threads = threads(&args.rounding, options.threads);
    let report =
        with_progress(&options.cancel, |progress| convert(&args.dir, &args.out, &options, progress))?;
    print(&report, &args.out, args.json)
}

/// The importance matrix that the flags name.
pub fn imatrix(args: &RoundingArgs) -> Result<Option<Imatrix>> {
    Ok(args.imatrix.as_ref().map(Imatrix::open).transpose()?)
}

/// Threads that the flags ask for.
pub fn threads(args: &RoundingArgs, default: usize) -> usize {
    args.threads.map_or(default, usize::from)
}

/// Runs `work` with a progress bar; Ctrl-C throws `cancel`.
pub fn with_progress<T>(
    cancel: &Cancel,
    work: impl FnOnce(&mut dyn FnMut(Progress)) -> lapidary_convert::Result<T>,
) -> Result<T> {
    let interrupted = interrupt::install()?;
    let template = "{msg:.dim} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(template).expect("a valid template");
    let bar = ProgressBar::new(0).with_style(style.progress_chars("=> "));
    let result = work(&mut |progress| {
        if interrupted.load(Ordering::Relaxed) {
            cancel.cancel();
        }
        bar.set_length(progress.bytes);
        bar.set_position(progress.bytes_done);
        bar.set_message(format!("{:>4}/{}", progress.tensors_done, progress.tensors));
    });
    bar.finish_and_clear();
    Ok(result?)
}

/// Prints what was written.
pub fn print(report: &Report, out: &Path, json: bool) -> Result<()> {
    if json {
        let mut stdout = std::io::stdout().lock();
        serde_json::to_writer(&mut stdout, report)?;
        return Ok(writeln!(stdout)?);
    }
    for note in &report.notes {
        eprintln!("note: {}", printable(note));
    }
    let (size, bits) = (bytes(report.bytes), report.bits_per_weight);
    let (tensors, seconds) = (report.tensors, report.seconds);
    eprintln!("{}: {tensors} tensors, {size}, {bits:.2} bits per weight, {seconds:.1} s", out.display());
    Ok(())
}
