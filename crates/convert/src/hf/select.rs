//! Finding the model's tensors in a checkpoint, and what is left over.

use std::collections::BTreeMap;

use lapidary_gguf::GgmlType;

use super::config::TextConfig;
use super::tensors::{Edit, TensorSpec, rope_divisors, specs};
use crate::error::{ConvertError, Result};
use crate::plan::{Elements, PlannedTensor, Source};
use crate::safetensors::{Checkpoint, StoredTensor};

/// The tensors of the output, each with its place in the checkpoint.
pub struct Selection<'a> {
    /// In the order of the output; types are still to be chosen.
    pub tensors: Vec<PlannedTensor<'a>>,
    /// Whether the checkpoint's embeddings are stored as BF16.
    pub bf16: bool,
    /// What of the checkpoint is not taken.
    pub notes: Vec<String>,
}

impl<'a> Selection<'a> {
    /// The tensors that a configuration asks for, without data.
    pub fn of_config(config: &TextConfig) -> Self {
        let own_kv = config.own_kv_layers();
        let wanted = |spec: &TensorSpec| {
            // Keys and values that layers may carry and never use.
            let layer =
                spec.gguf.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
            let unused = !spec.required && !spec.gguf.ends_with("layer_output_scale.weight");
            !(unused && layer.is_some_and(|i| i >= own_kv))
        };
        let empty = |name: String, shape: Vec<u64>| tensor(name, shape, Box::new(Vec::new()));
        let shape = |spec: &TensorSpec| spec.shape.iter().rev().copied().collect();
        let specs = specs(config);
        let tensors = rope_divisors(config).map(divisors).into_iter();
        let tensors =
            tensors.chain(specs.iter().filter(|s| wanted(s)).map(|s| empty(s.gguf.clone(), shape(s))));
        Self { tensors: tensors.collect(), bf16: true, notes: Vec::new() }
    }

    /// Matches the checkpoint with the configuration. `vocab` rows are kept of tensors with a row a token.
    ///
    /// # Errors
    /// When a tensor is missing, of another shape or of an unreadable type, or one is left that no model has.
    pub fn new(config: &TextConfig, checkpoint: &'a Checkpoint, vocab: u64) -> Result<Self> {
        let mut parts = Parts::of(checkpoint);
        let mut tensors = Vec::new();
        tensors.extend(rope_divisors(config).map(divisors));
        let mut bf16 = false;
        for spec in specs(config) {
            match parts.text.remove(&spec.hf) {
                Some(stored) => {
                    check(checkpoint, stored, &spec)?;
                    bf16 |= spec.gguf == "token_embd.weight" && stored.dtype == "BF16";
                    tensors.push(planned(checkpoint, stored, &spec, vocab));
                }
                None if spec.required => {
                    return Err(ConvertError::MissingTensor { name: spec.hf, shape: spec.shape });
                }
                None => {}
            }
        }
        let mut notes = parts.notes();
        parts.text.retain(|name, _| !is_derived(name));
        if config.tied && parts.text.remove("lm_head.weight").is_some() {
            notes.push("lm_head.weight is left out: the embedding table is the output matrix".into());
        }
        if parts.text.is_empty() {
            return Ok(Self { tensors, bf16, notes });
        }
        let name =
            |t: &&StoredTensor| format!("{} {:?} in {}", t.name, t.shape, checkpoint.path(t).display());
        Err(ConvertError::UnknownTensors { names: parts.text.values().map(name).collect() })
    }
}

/// Buffers that some checkpoints carry and that follow from the configuration.
fn is_derived(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq") || name.ends_with("embed_scale")
}

/// A checkpoint's tensors by the part of the model they belong to.
struct Parts<'a> {
    /// Text model, by name without its prefix.
    text: BTreeMap<String, &'a StoredTensor>,
    /// Image and sound models: how many tensors under which first name.
    other: BTreeMap<String, usize>,
}

impl<'a> Parts<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Self {
        let mut parts = Self { text: BTreeMap::new(), other: BTreeMap::new() };
        for tensor in checkpoint.tensors() {
            match text_name(&tensor.name) {
                Some(name) => _ = parts.text.insert(name.to_owned(), tensor),
                None => *parts.other.entry(part_name(&tensor.name)).or_default() += 1,
            }
        }
        parts
    }

    fn notes(&self) -> Vec<String> {
        let note = |(part, count): (&String, &usize)| {
            format!("{part}: {count} tensors are not part of the text model")
        };
        self.other.iter().map(note).collect()
    }
}

/// A text tensor's name behind the model's prefix; `None` for tensors of other parts.
fn text_name(name: &str) -> Option<&str> {
    const PREFIXES: [&str; 4] =
        ["model.language_model.", "language_model.model.", "language_model.", "model."];
    let stripped = PREFIXES.iter().find_map(|p| name.strip_prefix(p)).unwrap_or(name);
    let other = ["vision", "audio", "projector"].iter().any(|part| stripped.contains(part));
    (!other).then_some(stripped)
}

/// "vision_tower" of "model.vision_tower.encoder.layers.0.weight".
fn part_name(name: &str) -> String {
    let name = name.strip_prefix("model.").unwrap_or(name);
    name.split('.').next().unwrap_or(name).to_owned()
}

fn check(checkpoint: &Checkpoint, stored: &StoredTensor, spec: &TensorSpec) -> Result<()> {
    checkpoint.check_dtype(stored)?;
    if stored.shape == spec.shape {
        return Ok(());
    }
    let (name, path) = (stored.name.clone(), checkpoint.path(stored).to_owned());
    Err(ConvertError::Shape { name, path, found: stored.shape.clone(), expected: spec.shape.clone() })
}

fn planned<'a>(
    checkpoint: &'a Checkpoint,
    stored: &'a StoredTensor,
    spec: &TensorSpec,
    vocab: u64,
) -> PlannedTensor<'a> {
    let mut shape: Vec<u64> = spec.shape.iter().rev().copied().collect();
    if spec.by_token {
        shape[1] = shape[1].min(vocab);
    }
    let elements = StoredElements { checkpoint, stored, edit: spec.edit };
    tensor(spec.gguf.clone(), shape, Box::new(elements))
}

fn tensor<'a>(name: String, shape: Vec<u64>, elements: Box<dyn Elements + 'a>) -> PlannedTensor<'a> {
    PlannedTensor { name, shape, ty: GgmlType::F32, source: Source::Elements(elements), importance: None }
}

fn divisors<'a>(values: Vec<f32>) -> PlannedTensor<'a> {
    tensor("rope_freqs.weight".into(), vec![values.len() as u64], Box::new(values))
}

/// Elements of a checkpoint's tensor.
struct StoredElements<'a> {
    checkpoint: &'a Checkpoint,
    stored: &'a StoredTensor,
    edit: Edit,
}

impl Elements for StoredElements<'_> {
    fn read(&self, first: u64, out: &mut [f32], scratch: &mut Vec<u8>) -> Result<()> {
        self.checkpoint.read(self.stored, first, out, scratch)?;
        let Edit { shift, factor } = self.edit;
        if self.edit != Edit::NONE {
            out.iter_mut().for_each(|x| *x = (*x + shift) * factor);
        }
        Ok(())
    }
}

impl Elements for Vec<f32> {
    fn read(&self, first: u64, out: &mut [f32], _: &mut Vec<u8>) -> Result<()> {
        let first = first as usize;
        out.copy_from_slice(&self[first..first + out.len()]);
        Ok(())
    }
}
