//! Models of random weights in the shapes of the released ones, for measuring speed and memory without them.

mod kind;
mod vocabulary;
mod weights;

use std::path::Path;
use std::time::Instant;

use lapidary_gguf::GgufWriter;

pub use kind::SyntheticKind;

use crate::error::{ConvertError, Result};
use crate::file_type::FileType;
use crate::hf::config::TextConfig;
use crate::hf::metadata::{self, General};
use crate::hf::select::Selection;
use crate::hf::{ConvertOptions, plan_types, size_label};
use crate::mix::Overrides;
use crate::plan::PlannedTensor;
use crate::progress::{Cancel, Progress, Report};
use crate::write::{self, Target, Written};
use weights::Weights;

/// What to make.
#[derive(Clone, Debug)]
pub struct SyntheticOptions {
    /// The model whose shape it has.
    pub kind: SyntheticKind,
    /// Type of the file, with the mixture of tensor types that a quantised file has.
    pub file_type: FileType,
    /// Types of single tensors.
    pub overrides: Overrides,
    /// Start of the random numbers; the same seed gives the same file.
    pub seed: u64,
    /// Layers, if not all.
    pub layers: Option<u32>,
    /// Threads that make weights.
    pub threads: usize,
    /// Stops the work.
    pub cancel: Cancel,
}

impl SyntheticOptions {
    /// A whole model on all cores.
    pub fn new(kind: SyntheticKind, file_type: FileType) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (overrides, cancel) = (Overrides::default(), Cancel::new());
        Self { kind, file_type, overrides, seed: 1, layers: None, threads, cancel }
    }
}

/// One tensor of a synthetic model.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SyntheticTensor {
    /// Name.
    pub name: String,
    /// Dimensions, fastest first.
    pub shape: Vec<u64>,
    /// Type.
    #[serde(rename = "type")]
    pub ty: &'static str,
    /// Bytes in the file.
    pub bytes: u64,
}

/// Writes a synthetic model to `out`: metadata and names as [`convert`](crate::convert) writes them, a made-up
/// vocabulary of the true size, and weights whose logits are finite whatever the input.
///
/// # Errors
/// When the number of layers makes no model, `out` cannot be written, or the work was cancelled. `out` is then as it was
/// before.
pub fn synthesize(
    out: &Path,
    options: &SyntheticOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    let start = Instant::now();
    let (config, tensors, notes) = plan(options)?;
    let writer = writer(&config, &tensors, options)?;
    let target = Target { path: out, threads: options.threads, cancel: &options.cancel };
    let written = write::write(&target, writer, &tensors, progress)?;
    Ok(written.report(start.elapsed(), notes))
}

/// Says what [`synthesize`] would write, without writing.
///
/// # Errors
/// As [`synthesize`], as far as the options are concerned.
pub fn plan_synthetic(options: &SyntheticOptions) -> Result<(Vec<SyntheticTensor>, Report)> {
    let start = Instant::now();
    let (config, tensors, notes) = plan(options)?;
    let mut writer = writer(&config, &tensors, options)?;
    write::declare(&mut writer, &tensors)?;
    let rows = tensors.iter().map(|t| {
        Ok(SyntheticTensor {
            name: t.name.clone(),
            shape: t.shape.clone(),
            ty: t.ty.name(),
            bytes: t.bytes()?,
        })
    });
    let rows = rows.collect::<Result<_>>()?;
    Ok((rows, Written::planned(&writer, &tensors)?.report(start.elapsed(), notes)))
}

fn plan(options: &SyntheticOptions) -> Result<(TextConfig, Vec<PlannedTensor<'static>>, Vec<String>)> {
    let config = options.kind.config(options.layers)?;
    let mut convert = ConvertOptions::new(options.file_type);
    convert.overrides = options.overrides.clone();
    let mut notes = Vec::new();
    let typed = plan_types(&config, Selection::of_config(&config), &convert, &mut notes);
    let weights = Weights::new(options.seed);
    let filled = typed.into_iter().map(|tensor| {
        let source = weights.source(&tensor, &config)?;
        let PlannedTensor { name, shape, ty, .. } = tensor;
        Ok(PlannedTensor { name, shape, ty, source, importance: None })
    });
    let tensors = filled.collect::<Result<_>>()?;
    Ok((config, tensors, notes))
}

fn writer(config: &TextConfig, tensors: &[PlannedTensor], options: &SyntheticOptions) -> Result<GgufWriter> {
    let general = General {
        name: format!("Synthetic {} (random weights)", options.kind),
        size_label: size_label(tensors, config),
        sampling: Vec::new(),
        suppressed: Vec::new(),
    };
    let mut writer = GgufWriter::new();
    general.write(&mut writer, config.family)?;
    metadata::write_model(&mut writer, config, options.file_type.id())?;
    let tokenizer = vocabulary::tokenizer(config);
    metadata::write_tokenizer(&mut writer, config, config.vocab, Some(&tokenizer))?;
    Ok(writer)
}

impl From<SyntheticLayersError> for ConvertError {
    fn from(error: SyntheticLayersError) -> Self {
        Self::Option(error.0)
    }
}

/// A number of layers that makes no model.
struct SyntheticLayersError(String);

#[cfg(test)]
mod tests;
