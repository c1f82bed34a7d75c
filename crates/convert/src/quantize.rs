//! GGUF files in other types.

use std::path::Path;
use std::time::Instant;

use lapidary_gguf::{GgmlType, Gguf, GgufWriter, SharedBytes, TensorInfo, block};
use serde::Serialize;

use crate::error::{ConvertError, Result};
use crate::file_type::FileType;
use crate::imatrix::Imatrix;
use crate::mix::{self, Candidate, Choice, ModelFacts, Overrides};
use crate::plan::{Elements, PlannedTensor, Source};
use crate::progress::{Cancel, Progress, Report};
use crate::write::{self, Target, Written};

/// How to quantise.
#[derive(Clone, Debug)]
pub struct QuantizeOptions {
    /// Types of single tensors.
    pub overrides: Overrides,
    /// Importance of the weights.
    pub imatrix: Option<Imatrix>,
    /// Threads that encode.
    pub threads: usize,
    /// Stops the work.
    pub cancel: Cancel,
}

impl Default for QuantizeOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { overrides: Overrides::default(), imatrix: None, threads, cancel: Cancel::new() }
    }
}

/// One line of what a quantisation would do.
#[derive(Clone, Debug, Serialize)]
pub struct PlanRow {
    /// The tensor.
    pub name: String,
    /// Dimensions, fastest first.
    pub shape: Vec<u64>,
    /// Type in the input.
    pub from: &'static str,
    /// Type in the output.
    pub to: &'static str,
    /// The type its rows are not divisible for.
    pub fallback_from: Option<&'static str>,
    /// Bytes in the output.
    pub bytes: u64,
    /// Bits of storage for each element.
    pub bits_per_weight: f64,
}

/// What a quantisation would write.
#[derive(Clone, Debug, Serialize)]
pub struct QuantizePlan {
    /// Tensors in the order of the output.
    pub rows: Vec<PlanRow>,
    /// The sums; `seconds` is the time the planning took.
    pub report: Report,
}

/// Writes the model `input` to `output` in another type.
///
/// Also from a quantised input, with a note in the report: what it lost does not come back. Tensors that already have
/// their type are copied as they are.
///
/// # Errors
/// When the input cannot be read, importance weights do not fit, the output cannot be written, or the work was
/// cancelled. `output` is then as it was before.
pub fn quantize(
    input: &Path,
    output: &Path,
    file_type: FileType,
    options: &QuantizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    let start = Instant::now();
    let gguf = Gguf::open(input)?;
    if is_same_file(input, output) {
        return Err(ConvertError::Option(format!("{} is input and output at once", input.display())));
    }
    let choices = choices(&gguf, file_type, options)?;
    let tensors = plan(&gguf, &choices, options)?;
    let writer = writer(&gguf, file_type, options)?;
    let target = Target { path: output, threads: options.threads, cancel: &options.cancel };
    let written = write::write(&target, writer, &tensors, progress)?;
    Ok(written.report(start.elapsed(), notes(&gguf, &choices)))
}

/// Says what [`quantize`] would write, without writing.
///
/// # Errors
/// As [`quantize`], as far as the input is concerned.
pub fn plan_quantize(input: &Path, file_type: FileType, options: &QuantizeOptions) -> Result<QuantizePlan> {
    let start = Instant::now();
    let gguf = Gguf::open(input)?;
    let choices = choices(&gguf, file_type, options)?;
    let tensors = plan(&gguf, &choices, options)?;
    let mut writer = writer(&gguf, file_type, options)?;
    write::declare(&mut writer, &tensors)?;
    let planned = Written::planned(&writer, &tensors)?;
    let row = |((tensor, choice), info): ((&PlannedTensor, &Choice), &TensorInfo)| {
        Ok(PlanRow {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            from: info.ty()?.name(),
            to: tensor.ty.name(),
            fallback_from: choice.fallback_from.map(GgmlType::name),
            bytes: tensor.bytes()?,
            bits_per_weight: tensor.ty.bits_per_weight(),
        })
    };
    let rows = tensors.iter().zip(&choices).zip(gguf.tensors()).map(row).collect::<Result<_>>()?;
    Ok(QuantizePlan { rows, report: planned.report(start.elapsed(), notes(&gguf, &choices)) })
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

fn choices(gguf: &Gguf, file_type: FileType, options: &QuantizeOptions) -> Result<Vec<Choice>> {
    let candidate = |info| {
        let info: &TensorInfo = info;
        Ok(Candidate { name: info.name(), shape: info.shape(), stored: info.ty()? })
    };
    let candidates = gguf.tensors().iter().map(candidate).collect::<Result<Vec<_>>>()?;
    Ok(mix::choose(file_type, &candidates, facts(gguf)?, &options.overrides, options.imatrix.is_some()))
}

/// What the type rules need to know, from the metadata.
fn facts(gguf: &Gguf) -> Result<ModelFacts> {
    let metadata = gguf.metadata();
    let architecture = metadata.str("general.architecture")?;
    let key = |name: &str| format!("{architecture}.{name}");
    // A number for all layers or one a layer.
    let first = |name: &str| -> Result<Option<u64>> {
        let key = key(name);
        match metadata.get(&key).and_then(|v| v.as_array()) {
            Some(array) => Ok(array.to_u64s().and_then(|all| all.first().copied())),
            None => Ok(metadata.opt_u32(&key)?.map(u64::from)),
        }
    };
    let heads = first("attention.head_count")?.unwrap_or(1);
    let kv_heads = first("attention.head_count_kv")?.unwrap_or(heads);
    Ok(ModelFacts {
        layers: metadata.opt_u32(&key("block_count"))?.unwrap_or(0) as usize,
        experts: metadata.opt_u32(&key("expert_count"))?.unwrap_or(0) as usize,
        queries_per_kv: heads.checked_div(kv_heads).unwrap_or(0) as usize,
    })
}

fn plan<'a>(gguf: &Gguf, choices: &[Choice], options: &'a QuantizeOptions) -> Result<Vec<PlannedTensor<'a>>> {
    gguf.tensors().iter().zip(choices).map(|(info, choice)| planned(gguf, info, choice.ty, options)).collect()
}

fn planned<'a>(
    gguf: &Gguf,
    info: &TensorInfo,
    ty: GgmlType,
    options: &'a QuantizeOptions,
) -> Result<PlannedTensor<'a>> {
    let (name, shape, stored) = (info.name().to_owned(), info.shape().to_vec(), info.ty()?);
    let bytes = gguf.data(info)?;
    let source = match stored == ty {
        true => Source::Bytes(bytes),
        false => Source::Elements(Box::new(Encoded { name: name.clone(), ty: stored, bytes })),
    };
    let mut tensor = PlannedTensor { name, shape, ty, source, importance: None };
    tensor.importance = importance(&tensor, options)?;
    Ok(tensor)
}

/// The tensor's importance weights, which must be one for each column of each matrix.
fn importance<'a>(tensor: &PlannedTensor, options: &'a QuantizeOptions) -> Result<Option<&'a [f32]>> {
    let weights = options.imatrix.as_ref().and_then(|m| m.weights(&tensor.name));
    let Some(weights) = weights.filter(|_| !tensor.ty.is_float()) else { return Ok(None) };
    let expected = tensor.row_len() * tensor.shape.get(2).copied().unwrap_or(1);
    if weights.len() as u64 == expected {
        return Ok(Some(weights));
    }
    // Embedding tables are looked up, not multiplied, so what was measured under their name may be the output's.
    if tensor.name.ends_with("token_embd.weight") {
        return Ok(None);
    }
    let problem = format!("it has {} values for tensor {}, expected {expected}", weights.len(), tensor.name);
    Err(ConvertError::Imatrix(problem))
}

/// The input's metadata, with what changes.
fn writer(gguf: &Gguf, file_type: FileType, options: &QuantizeOptions) -> Result<GgufWriter> {
    let mut writer = GgufWriter::new();
    writer.set_all(gguf.metadata())?;
    ["split.no", "split.count", "split.tensors.count"].iter().for_each(|key| _ = writer.remove(key));
    writer.set("general.quantization_version", 2u32)?;
    writer.set("general.file_type", file_type.id())?;
    if let Some(imatrix) = &options.imatrix {
        imatrix.describe(&mut writer)?;
    }
    Ok(writer)
}

fn notes(gguf: &Gguf, choices: &[Choice]) -> Vec<String> {
    let requantised = gguf.tensors().iter().zip(choices);
    let requantised =
        requantised.filter(|(info, c)| info.ty().is_ok_and(|ty| !ty.is_float() && ty != c.ty)).count();
    let lossy = (requantised > 0).then(|| {
        format!("{requantised} tensors were quantised before; quantise the original for better quality")
    });
    lossy.into_iter().chain(mix::fallback_note(choices)).collect()
}

/// Elements of a tensor in a GGUF file.
struct Encoded {
    name: String,
    ty: GgmlType,
    bytes: SharedBytes,
}

impl Elements for Encoded {
    fn read(&self, first: u64, out: &mut [f32], _: &mut Vec<u8>) -> Result<()> {
        let problem = |problem: String| ConvertError::Tensor { name: self.name.clone(), problem };
        let (block, size) = (self.ty.block_len(), self.ty.block_bytes());
        let range = first as usize / block * size..(first as usize + out.len()) / block * size;
        let bytes = self.bytes.get(range).ok_or_else(|| problem("its data is too short".into()))?;
        block::dequantize(self.ty, bytes, out).map_err(|e| problem(e.to_string()))
    }
}
