//! A short name for a model's contents.

use lapidary_gguf::Gguf;

use crate::error::Result;

/// Bytes that are looked at in each of [`SAMPLES`] places of a tensor.
const SAMPLE: usize = 4096;
const SAMPLES: usize = 8;

/// A hash of a file's metadata, its tensors' names, types and shapes, and of some kilobytes of each tensor's data. Files
/// that differ in any of these have different fingerprints; one that was changed by a few bytes in a large tensor may not.
///
/// # Errors
/// When a tensor's data lies outside the file.
pub fn fingerprint(gguf: &Gguf) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    for (key, value) in gguf.metadata().iter() {
        hasher.update(key.as_bytes());
        hasher.update(format!("{value:?}").as_bytes());
    }
    for tensor in gguf.tensors() {
        hasher.update(format!("{} {:?} {}", tensor.name(), tensor.shape(), tensor.type_name()).as_bytes());
        let bytes = gguf.data(tensor)?;
        let step = (bytes.len() / SAMPLES).max(1);
        for at in (0..bytes.len()).step_by(step) {
            hasher.update(&bytes[at..bytes.len().min(at + SAMPLE)]);
        }
    }
    Ok(*hasher.finalize().as_bytes())
}
