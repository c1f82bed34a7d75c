//! Hugging Face checkpoints to GGUF.

pub(crate) mod config;
pub(crate) mod fields;
pub(crate) mod json;
pub(crate) mod metadata;
pub(crate) mod select;
mod sentencepiece;
pub(crate) mod tensors;
pub(crate) mod tokenizer;
mod tokenizer_json;

use std::path::Path;
use std::time::Instant;

use lapidary_gguf::{GgmlType, GgufWriter};

use self::config::{Family, TextConfig};
use self::fields::Fields;
use self::metadata::General;
use self::select::Selection;
use self::tokenizer::Tokenizer;
use crate::error::{ConvertError, Result};
use crate::file_type::FileType;
use crate::imatrix::Imatrix;
use crate::mix::{self, Candidate, ModelFacts, Overrides};
use crate::plan::PlannedTensor;
use crate::progress::{Cancel, Progress, Report};
use crate::safetensors::Checkpoint;
use crate::write::{self, Target};

/// How to convert.
#[derive(Clone, Debug)]
pub struct ConvertOptions {
    /// Type of the output.
    pub file_type: FileType,
    /// Types of single tensors.
    pub overrides: Overrides,
    /// Importance of the weights, for the types that round.
    pub imatrix: Option<Imatrix>,
    /// Threads that encode.
    pub threads: usize,
    /// Stops the work.
    pub cancel: Cancel,
}

impl ConvertOptions {
    /// Converts to `file_type` on all cores.
    pub fn new(file_type: FileType) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (overrides, imatrix, cancel) = (Overrides::default(), None, Cancel::new());
        Self { file_type, overrides, imatrix, threads, cancel }
    }
}

/// Converts a Hugging Face folder of a Gemma 3 or Gemma 4 text model into the GGUF file `out`.
///
/// Of a multimodal checkpoint the text part is taken. Memory in use does not depend on the size of the model.
///
/// # Errors
/// When the folder lacks a file or a shard, a file is damaged, a tensor is missing, unknown or of a wrong shape, the
/// output cannot be written, or the work was cancelled. `out` is then as it was before.
pub fn convert(
    dir: &Path,
    out: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    let start = Instant::now();
    if is_input(dir, out) {
        let problem =
            format!("{} is a file of the folder that is converted; name another output", out.display());
        return Err(ConvertError::Option(problem));
    }
    let config = TextConfig::from_fields(&Fields::open(dir)?)?;
    let checkpoint = Checkpoint::open(dir)?;
    let mut tokenizer = Tokenizer::read(dir, &config)?;
    let mut notes = Vec::new();
    let vocab = vocabulary(&config, tokenizer.as_mut(), &mut notes);
    let selection = Selection::new(&config, &checkpoint, vocab)?;
    notes.extend(selection.notes.iter().cloned());
    let tensors = plan_types(&config, selection, options, &mut notes);
    let general = General::read(dir, size_label(&tensors, &config))?;
    let mut writer = GgufWriter::new();
    general.write(&mut writer, config.family)?;
    metadata::write_model(&mut writer, &config, options.file_type.id())?;
    metadata::write_tokenizer(&mut writer, &config, vocab, tokenizer.as_ref())?;
    general.write_suppressed(&mut writer)?;
    if let Some(imatrix) = &options.imatrix {
        imatrix.describe(&mut writer)?;
    }
    let target = Target { path: out, threads: options.threads, cancel: &options.cancel };
    let written = write::write(&target, writer, &tensors, progress)?;
    Ok(written.report(start.elapsed(), notes))
}

/// Whether `out` is a file that stands in `dir` already and is no GGUF made before: it may be one that is read.
fn is_input(dir: &Path, out: &Path) -> bool {
    let folder = |path: &Path| path.canonicalize().ok();
    let made_before = out.extension().is_some_and(|extension| extension == "gguf");
    !made_before && folder(out).is_some_and(|out| folder(dir).as_deref() == out.parent())
}

/// Rows of the embedding table in the output. Gemma 4's tokenizer decides, as in llama.cpp's converter: rows beyond it
/// are cut. Gemma 3's vocabulary is filled up instead.
fn vocabulary(config: &TextConfig, tokenizer: Option<&mut Tokenizer>, notes: &mut Vec<String>) -> u64 {
    let Some(tokenizer) = tokenizer else {
        notes.push(
            "the folder has no tokenizer: the output has no vocabulary and takes token ids only".into(),
        );
        return config.vocab;
    };
    let tokens = tokenizer.tokens.len() as u64;
    if config.family == Family::Gemma4 && tokens < config.vocab {
        notes.push(format!(
            "{} embeddings beyond the tokenizer's {tokens} tokens are left out",
            config.vocab - tokens
        ));
        return tokens;
    }
    notes.extend(tokenizer.fit(config.vocab as usize));
    config.vocab
}

/// Chooses the tensors' types.
pub(crate) fn plan_types<'a>(
    config: &TextConfig,
    selection: Selection<'a>,
    options: &'a ConvertOptions,
    notes: &mut Vec<String>,
) -> Vec<PlannedTensor<'a>> {
    let mut tensors = selection.tensors;
    let unquantised = if selection.bf16 { GgmlType::BF16 } else { GgmlType::F16 };
    let wide = match options.file_type {
        float if float.is_float() => float.base(),
        _ => unquantised,
    };
    tensors.iter_mut().for_each(|t| t.ty = if keeps_f32(t) { GgmlType::F32 } else { wide });
    let candidates: Vec<Candidate> =
        tensors.iter().map(|t| Candidate { name: &t.name, shape: &t.shape, stored: t.ty }).collect();
    let first_kv = config.layers.first().map_or(1, |l| l.kv_heads);
    let facts = ModelFacts {
        layers: config.layers.len(),
        experts: config.experts.map_or(0, |e| e.count as usize),
        queries_per_kv: (config.heads / first_kv) as usize,
    };
    let choices =
        mix::choose(options.file_type, &candidates, facts, &options.overrides, options.imatrix.is_some());
    notes.extend(mix::fallback_note(&choices));
    for (tensor, choice) in tensors.iter_mut().zip(choices) {
        tensor.ty = choice.ty;
        tensor.importance = options.imatrix.as_ref().and_then(|m| m.weights(&tensor.name));
    }
    tensors
}

/// Small tensors that act on whole rows stay in full precision, whatever the file's type.
fn keeps_f32(tensor: &PlannedTensor) -> bool {
    tensor.shape.len() < 2
        || tensor.name.ends_with("_norm.weight")
        || tensor.name.ends_with("ffn_gate_inp.weight")
        || !tensor.name.ends_with(".weight")
}

/// The size in the metadata: "270M", "128x2.4M".
pub(crate) fn size_label(tensors: &[PlannedTensor], config: &TextConfig) -> String {
    let is_expert = |t: &&PlannedTensor| t.name.contains("_exps.") && t.shape.len() >= 3;
    let expert: u64 = tensors.iter().filter(is_expert).map(|t| t.elements() / t.shape[2]).sum();
    let shared: u64 = tensors.iter().filter(|t| !is_expert(t)).map(PlannedTensor::elements).sum();
    metadata::size_label(shared, expert, config.experts.map(|e| e.count))
}
