//! `lapidary trace`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use lapidary_backend::Choices;
use lapidary_engine::tokenizer::EncodeOptions;
use lapidary_engine::{Point, Probe};
use safetensors::tensor::{Dtype, TensorView};
use serde::Serialize;

use crate::args::{TraceArgs, TracePoint};
use crate::device::{Device, on_device};
use crate::load;
use crate::output::bytes;

#[derive(Serialize)]
struct Report {
    tokens: usize,
    tensors: Vec<String>,
    bytes: u64,
}

/// Writes values of the forward pass to a file.
pub fn run(args: TraceArgs) -> Result<()> {
    if let Some(model) = &args.run.model.model
        && let (Ok(model), Ok(out)) = (model.canonicalize(), args.out.canonicalize())
        && model == out
    {
        bail!("{} is the model itself; name another file with --out", args.out.display());
    }
    if args.out.metadata().is_ok_and(|found| !found.is_file()) {
        bail!("{} exists and is no regular file; name another file with --out", args.out.display());
    }
    on_device!(&args.run, backend => trace(&args, backend))
}

fn trace<B: Device>(args: &TraceArgs, backend: Arc<B>) -> Result<()> {
    let loaded = load::load(&args.run, backend)?;
    let ids = match &args.prompt {
        Some(text) => {
            let options = EncodeOptions { add_bos: true, parse_special: true };
            loaded.tokenizer()?.encode(text.as_bytes(), options)
        }
        None => args.ids.clone(),
    };
    if ids.is_empty() {
        bail!("there are no tokens to trace");
    }
    let mut session = load::session(&loaded, &args.run, ids.len(), args.batch_size as usize)?;
    let mut recorder = Recorder { points: args.points.clone(), tensors: BTreeMap::new() };
    let wants_logits = args.points.contains(&TracePoint::Logits);
    let mut logits = Vec::new();
    session.feed_all(&ids, &mut recorder, |_, row| {
        if wants_logits {
            logits.extend_from_slice(row);
        }
    })?;
    if wants_logits {
        recorder.tensors.insert("logits".into(), Recorded::Floats(loaded.model.config().vocab, logits));
    }
    let size = write(&args.out, &recorder.tensors)?;
    report(args, ids.len(), recorder, size)
}

/// Collects the points asked for.
struct Recorder {
    points: Vec<TracePoint>,
    tensors: BTreeMap<String, Recorded>,
}

/// Rows of a number of columns.
enum Recorded {
    Floats(usize, Vec<f32>),
    Ids(usize, Vec<i64>),
}

impl Recorder {
    fn push(&mut self, name: String, cols: usize, values: &[f32]) {
        match self.tensors.entry(name).or_insert_with(|| Recorded::Floats(cols, Vec::new())) {
            Recorded::Floats(_, all) => all.extend_from_slice(values),
            Recorded::Ids(..) => unreachable!("a name has one type"),
        }
    }
}

impl Probe for Recorder {
    fn wants(&self, point: Point) -> bool {
        match point {
            Point::Embed | Point::LayerOut(_) | Point::FinalNorm => self.points.contains(&TracePoint::Hidden),
            Point::Router(_) => self.points.contains(&TracePoint::Router),
            Point::AttentionHeads(_) | Point::AttentionOut(_) => false,
        }
    }

    fn values(&mut self, point: Point, cols: usize, values: &[f32]) {
        let name = match point {
            Point::Embed => "hidden.0".to_owned(),
            Point::LayerOut(i) => format!("hidden.{}", i + 1),
            Point::FinalNorm => "final_norm".to_owned(),
            Point::AttentionHeads(_) | Point::AttentionOut(_) | Point::Router(_) => return,
        };
        self.push(name, cols, values);
    }

    fn choices(&mut self, point: Point, top_k: usize, choices: &Choices) {
        let Point::Router(layer) = point else { return };
        self.push(format!("router.{layer}.weights"), top_k, &choices.weights);
        let ids = choices.experts.iter().map(|&e| i64::from(e));
        match self
            .tensors
            .entry(format!("router.{layer}.ids"))
            .or_insert_with(|| Recorded::Ids(top_k, Vec::new()))
        {
            Recorded::Ids(_, all) => all.extend(ids),
            Recorded::Floats(..) => unreachable!("a name has one type"),
        }
    }
}

impl Recorded {
    fn view(&self) -> Result<TensorView<'_>> {
        let (dtype, cols, len, data): (_, _, _, &[u8]) = match self {
            Self::Floats(cols, values) => (Dtype::F32, *cols, values.len(), bytemuck::cast_slice(values)),
            Self::Ids(cols, values) => (Dtype::I64, *cols, values.len(), bytemuck::cast_slice(values)),
        };
        Ok(TensorView::new(dtype, vec![len / cols.max(1), cols], data)?)
    }
}

/// Writes the file beside its place and renames it, so that no half file is ever seen.
fn write(path: &Path, tensors: &BTreeMap<String, Recorded>) -> Result<u64> {
    let views: Vec<(&String, TensorView)> =
        tensors.iter().map(|(name, t)| Ok((name, t.view()?))).collect::<Result<_>>()?;
    let data = safetensors::serialize(views, None)?;
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let result = std::fs::write(&partial, &data).and_then(|()| std::fs::rename(&partial, path));
    if result.is_err() {
        // The error is reported below; a leftover is only untidy.
        let _ = std::fs::remove_file(&partial);
    }
    result.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(data.len() as u64)
}

fn report(args: &TraceArgs, tokens: usize, recorder: Recorder, size: u64) -> Result<()> {
    let names: Vec<String> = recorder.tensors.into_keys().collect();
    if args.json {
        let mut stdout = std::io::stdout().lock();
        serde_json::to_writer(&mut stdout, &Report { tokens, tensors: names, bytes: size })?;
        return Ok(writeln!(stdout)?);
    }
    eprintln!("{}: {} tensors of {tokens} tokens, {}", args.out.display(), names.len(), bytes(size));
    Ok(())
}
