//! `lapidary info`.

use std::io::Write;

use anyhow::Result;
use lapidary_backend::KvFormat;
use lapidary_cpu::CpuBackend;
use lapidary_engine::kv::KvSize;
use lapidary_engine::{Config, DEFAULT_BATCH, Workspace};
use lapidary_gguf::{Array, Gguf, GgufError, Value};
use serde::Serialize;

use crate::args::InfoArgs;
use crate::load;
use crate::memory::KvMemory;
use crate::output::{Table, bytes, count, printable};

#[derive(Serialize)]
struct Report {
    architecture: Option<String>,
    name: Option<String>,
    parameters: u64,
    file_bytes: u64,
    bits_per_weight: f64,
    layers: Option<u32>,
    context_length: Option<u32>,
    embedding_length: Option<u32>,
    vocabulary: Option<usize>,
    gguf_version: u32,
    alignment: u64,
    types: Vec<TypeReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<Vec<TensorReport>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv: Option<KvReport>,
}

/// Memory, all in bytes.
#[derive(Serialize)]
struct KvReport {
    /// The weights, as they are mapped.
    weights: u64,
    /// Activations of a prompt's batch.
    working: u64,
    /// What is free for keys and values beside the weights, if the system tells.
    budget: Option<u64>,
    /// Positions that the model was trained on.
    context: usize,
    formats: Vec<KvFormatReport>,
}

#[derive(Serialize)]
struct KvFormatReport {
    format: &'static str,
    /// Of one position: layers with a sliding window, the others, both.
    sliding_bytes_per_position: usize,
    full_bytes_per_position: usize,
    bytes_per_position: usize,
    /// Of a thousand tokens beyond the window.
    bytes_per_1000_tokens: usize,
    /// Of a sequence of the whole context.
    bytes_of_context: usize,
    /// The longest sequence that fits the budget.
    longest: Option<usize>,
}

#[derive(Serialize)]
struct TypeReport {
    r#type: String,
    tensors: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct TensorReport {
    name: String,
    shape: Vec<u64>,
    r#type: String,
    bytes: Option<u64>,
}

/// Describes a GGUF file.
pub fn run(args: InfoArgs) -> Result<()> {
    let gguf = load::open(&args.file)?;
    let mut report = describe(&gguf)?;
    report.tensors = args.tensors.then(|| tensors(&gguf));
    report.metadata = args.metadata.then(|| metadata(&gguf));
    report.kv = if args.kv { Some(kv(&gguf)?) } else { None };
    let mut stdout = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &report)?;
        return Ok(writeln!(stdout)?);
    }
    Ok(stdout.write_all(render(&report).as_bytes())?)
}

fn describe(gguf: &Gguf) -> Result<Report, GgufError> {
    let metadata = gguf.metadata();
    let architecture = metadata.opt_str("general.architecture")?.map(str::to_owned);
    let of_model = |key: &str| match &architecture {
        Some(prefix) => metadata.opt_u32(&format!("{prefix}.{key}")),
        None => Ok(None),
    };
    let parameters = gguf.tensors().iter().map(|t| t.elements()).sum();
    let stored: u64 = gguf.tensors().iter().filter_map(|t| t.bytes()).sum();
    Ok(Report {
        name: metadata.opt_str("general.name")?.map(str::to_owned),
        parameters,
        file_bytes: gguf.file_bytes(),
        bits_per_weight: if parameters == 0 { 0.0 } else { 8.0 * stored as f64 / parameters as f64 },
        layers: of_model("block_count")?,
        context_length: of_model("context_length")?,
        embedding_length: of_model("embedding_length")?,
        vocabulary: metadata.opt_array("tokenizer.ggml.tokens")?.map(Array::len),
        gguf_version: gguf.version(),
        alignment: gguf.alignment(),
        types: types(gguf),
        tensors: None,
        metadata: None,
        kv: None,
        architecture,
    })
}

fn kv(gguf: &Gguf) -> Result<KvReport> {
    let config = Config::from_gguf(gguf)?;
    let weights = gguf.tensors().iter().filter_map(|t| t.bytes()).sum();
    let budget = KvMemory::Auto.budget(weights);
    let format = |format: KvFormat| {
        let size = KvSize::new(&config, format, format);
        let (sliding, full) = size.by_kind();
        KvFormatReport {
            format: format.name(),
            sliding_bytes_per_position: sliding,
            full_bytes_per_position: full,
            bytes_per_position: size.per_position(),
            bytes_per_1000_tokens: 1000 * full,
            bytes_of_context: size.of_sequence(config.context_length, DEFAULT_BATCH),
            longest: budget.map(|b| size.longest(b, config.context_length, DEFAULT_BATCH)),
        }
    };
    Ok(KvReport {
        weights,
        working: Workspace::<CpuBackend>::bytes(&config, DEFAULT_BATCH, 1) as u64,
        budget: budget.map(|b| b as u64),
        context: config.context_length,
        formats: KvFormat::ALL.map(format).into(),
    })
}

fn render_kv(kv: &KvReport) -> String {
    let mut memory = Table::new(&["memory", ">size"]);
    memory.row(["weights".into(), bytes(kv.weights)]);
    memory.row(["working memory".into(), bytes(kv.working)]);
    let budget = kv.budget.map_or_else(|| "unknown".to_owned(), bytes);
    memory.row(["free for keys and values".into(), budget]);
    let context = format!(">{} positions", count(kv.context as u64));
    let mut table =
        Table::new(&["KV format", ">B/position", ">sliding", ">full", ">per 1k tokens", &context, ">fits"]);
    for f in &kv.formats {
        table.row([
            f.format.to_owned(),
            count(f.bytes_per_position as u64),
            count(f.sliding_bytes_per_position as u64),
            count(f.full_bytes_per_position as u64),
            bytes(f.bytes_per_1000_tokens as u64),
            bytes(f.bytes_of_context as u64),
            f.longest.map_or_else(|| "-".to_owned(), |n| count(n as u64)),
        ]);
    }
    format!("\n{}\n{}", memory.render(), table.render())
}

fn types(gguf: &Gguf) -> Vec<TypeReport> {
    let mut types: Vec<TypeReport> = Vec::new();
    for tensor in gguf.tensors() {
        let (name, bytes) = (tensor.type_name(), tensor.bytes().unwrap_or(0));
        match types.iter_mut().find(|t| t.r#type == name) {
            Some(entry) => {
                entry.tensors += 1;
                entry.bytes += bytes;
            }
            None => types.push(TypeReport { r#type: name, tensors: 1, bytes }),
        }
    }
    types.sort_by_key(|t| std::cmp::Reverse(t.bytes));
    types
}

fn tensors(gguf: &Gguf) -> Vec<TensorReport> {
    let report = |t: &lapidary_gguf::TensorInfo| TensorReport {
        name: t.name().to_owned(),
        shape: t.shape().to_vec(),
        r#type: t.type_name(),
        bytes: t.bytes(),
    };
    gguf.tensors().iter().map(report).collect()
}

fn metadata(gguf: &Gguf) -> serde_json::Map<String, serde_json::Value> {
    gguf.metadata().iter().map(|(key, value)| (key.to_owned(), json(value))).collect()
}

/// A metadata value as JSON; long arrays and strings are shortened.
fn json(value: &Value) -> serde_json::Value {
    const SHOWN: usize = 8;
    match value {
        Value::Unsigned(_, n) => (*n).into(),
        Value::Signed(_, n) => (*n).into(),
        Value::Float(_, x) => (*x).into(),
        Value::Bool(b) => (*b).into(),
        Value::String(bytes) => shorten(&String::from_utf8_lossy(bytes)).into(),
        Value::Array(array) if array.len() > 64 => {
            let first: Vec<serde_json::Value> = match array {
                Array::Strings(strings) => strings
                    .iter()
                    .take(SHOWN)
                    .map(|s| String::from_utf8_lossy(s).into_owned().into())
                    .collect(),
                other => other.fixed().into_iter().flatten().take(SHOWN).map(|v| json(&v)).collect(),
            };
            serde_json::json!({ "length": array.len(), "first": first })
        }
        Value::Array(Array::Strings(strings)) => {
            strings.iter().map(|s| shorten(&String::from_utf8_lossy(s))).collect::<Vec<_>>().into()
        }
        Value::Array(Array::Nested(arrays)) => {
            arrays.iter().map(|a| json(&Value::Array(a.clone()))).collect::<Vec<_>>().into()
        }
        Value::Array(fixed) => {
            fixed.fixed().into_iter().flatten().map(|v| json(&v)).collect::<Vec<_>>().into()
        }
    }
}

fn shorten(text: &str) -> String {
    const MAX: usize = 200;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

fn render(report: &Report) -> String {
    let unknown = || "-".to_owned();
    let number = |n: Option<u32>| n.map_or_else(unknown, |n| count(n.into()));
    let mut facts = Table::new(&["property", "value"]);
    let mut fact = |name: &str, value: String| facts.row([name.to_owned(), printable(&value)]);
    fact("architecture", report.architecture.clone().unwrap_or_else(unknown));
    fact("name", report.name.clone().unwrap_or_else(unknown));
    fact("parameters", count(report.parameters));
    fact("file", format!("{} ({:.2} bits per weight)", bytes(report.file_bytes), report.bits_per_weight));
    fact("layers", number(report.layers));
    fact("hidden size", number(report.embedding_length));
    fact("context", number(report.context_length));
    fact("vocabulary", report.vocabulary.map_or_else(unknown, |n| count(n as u64)));
    fact("GGUF version", format!("{}, alignment {}", report.gguf_version, report.alignment));
    let mut text = facts.render();

    let mut types = Table::new(&["type", ">tensors", ">size"]);
    for t in &report.types {
        types.row([t.r#type.clone(), t.tensors.to_string(), bytes(t.bytes)]);
    }
    text += &format!("\n{}", types.render());
    if let Some(kv) = &report.kv {
        text += &render_kv(kv);
    }
    if let Some(tensors) = &report.tensors {
        let mut table = Table::new(&["tensor", ">shape", "type", ">size"]);
        for t in tensors {
            let shape: Vec<String> = t.shape.iter().map(u64::to_string).collect();
            let size = t.bytes.map_or_else(unknown, bytes);
            table.row([printable(&t.name), shape.join(" x "), t.r#type.clone(), size]);
        }
        text += &format!("\n{}", table.render());
    }
    if let Some(metadata) = &report.metadata {
        let mut table = Table::new(&["key", "value"]);
        for (key, value) in metadata {
            table.row([printable(key), printable(&value.to_string())]);
        }
        text += &format!("\n{}", table.render());
    }
    text
}
