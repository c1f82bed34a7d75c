//! Reading checkpoints in the safetensors format, whole or in shards.
//!
//! Data is read by position into the caller's buffer instead of through a memory map, so that the memory in use does
//! not grow with the checkpoint. Source of the format: <https://github.com/huggingface/safetensors#format>.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{ConvertError, Result};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// The format's own limit on its header.
const MAX_HEADER: u64 = 100_000_000;

/// An element type this converter reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F32,
    F16,
    BF16,
}

impl Dtype {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::BF16,
            _ => return None,
        })
    }

    const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    /// Its name in the checkpoint.
    pub name: String,
    /// Dimensions, slowest first.
    pub shape: Vec<u64>,
    /// The element type's name, which may be one that cannot be read.
    pub dtype: String,
    shard: usize,
    offset: u64,
}

/// All tensors of a folder.
#[derive(Debug)]
pub struct Checkpoint {
    shards: Vec<Shard>,
    tensors: BTreeMap<String, StoredTensor>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Checkpoint {
    /// Opens the weights of a folder: `model.safetensors`, or the shards that the index names.
    ///
    /// # Errors
    /// When there are none, a shard is missing or damaged, or the index names a tensor that its shard lacks.
    pub fn open(dir: &Path) -> Result<Self> {
        let mut checkpoint = Self { shards: Vec::new(), tensors: BTreeMap::new() };
        if dir.join(SINGLE).is_file() {
            checkpoint.add_shard(&dir.join(SINGLE))?;
        } else if dir.join(INDEX).is_file() {
            checkpoint.add_indexed(dir)?;
        } else {
            let what = format!("{SINGLE} and {INDEX}; one of them must be there");
            return Err(ConvertError::MissingFile { dir: dir.to_owned(), what });
        }
        Ok(checkpoint)
    }

    fn add_indexed(&mut self, dir: &Path) -> Result<()> {
        let path = dir.join(INDEX);
        let index: Index = crate::hf::json::read(&path)?;
        let names: BTreeSet<&String> = index.weight_map.values().collect();
        // A name from outside must not lead out of the folder.
        if let Some(name) = names.iter().find(|n| Path::new(n).file_name() != Some(n.as_ref())) {
            return Err(ConvertError::file(&path, format!("shard '{name}' is not a plain file name")));
        }
        let missing: Vec<&str> =
            names.iter().filter(|n| !dir.join(n).is_file()).map(|n| n.as_str()).collect();
        if !missing.is_empty() {
            let what = format!(
                "{} of {} shards that {INDEX} names: {}",
                missing.len(),
                names.len(),
                missing.join(", ")
            );
            return Err(ConvertError::MissingFile { dir: dir.to_owned(), what });
        }
        for name in names {
            self.add_shard(&dir.join(name))?;
        }
        for (tensor, shard) in &index.weight_map {
            let found = self.tensors.get(tensor).map(|t| &self.shards[t.shard].path);
            if found != Some(&dir.join(shard)) {
                let problem = format!("it lacks tensor {tensor}, which {INDEX} says it holds");
                return Err(ConvertError::file(&dir.join(shard), problem));
            }
        }
        Ok(())
    }

    fn add_shard(&mut self, path: &Path) -> Result<()> {
        let file = File::open(path).map_err(ConvertError::read(path))?;
        let len = file.metadata().map_err(ConvertError::read(path))?.len();
        let (data_start, entries) = read_header(&file, len, path)?;
        let shard = self.shards.len();
        for (name, entry) in entries {
            let tensor =
                locate(name, entry, shard, data_start, len).map_err(|p| ConvertError::file(path, p))?;
            if let Some(earlier) = self.tensors.insert(tensor.name.clone(), tensor) {
                let other = self.shards.get(earlier.shard).map_or(path, |s| &s.path);
                let problem = format!("tensor {} is also in {}", earlier.name, other.display());
                return Err(ConvertError::file(path, problem));
            }
        }
        self.shards.push(Shard { path: path.to_owned(), file });
        Ok(())
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = &StoredTensor> {
        self.tensors.values()
    }

    /// The file a tensor lies in.
    pub fn path(&self, tensor: &StoredTensor) -> &Path {
        &self.shards[tensor.shard].path
    }

    /// Reads the elements from `first` on as f32. `scratch` is reused between calls.
    pub fn read(
        &self,
        tensor: &StoredTensor,
        first: u64,
        out: &mut [f32],
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let shard = &self.shards[tensor.shard];
        let dtype = dtype_of(tensor).map_err(|p| ConvertError::file(&shard.path, p))?;
        let size = dtype.bytes();
        scratch.resize(out.len() * size, 0);
        let offset = tensor.offset + first * size as u64;
        read_exact_at(&shard.file, scratch, offset).map_err(ConvertError::read(&shard.path))?;
        widen(dtype, scratch, out);
        Ok(())
    }

    /// Fails when a tensor's element type cannot be read.
    pub fn check_dtype(&self, tensor: &StoredTensor) -> Result<()> {
        dtype_of(tensor).map(|_| ()).map_err(|p| ConvertError::file(self.path(tensor), p))
    }
}

fn dtype_of(tensor: &StoredTensor) -> Result<Dtype, String> {
    Dtype::from_name(&tensor.dtype).ok_or_else(|| {
        format!(
            "tensor {} is of type {}; F32, F16 and BF16 can be converted (take the unquantised checkpoint)",
            tensor.name, tensor.dtype
        )
    })
}

fn read_header(file: &File, len: u64, path: &Path) -> Result<(u64, BTreeMap<String, Entry>)> {
    let damaged = |problem: String| ConvertError::file(path, problem);
    if len < 8 {
        return Err(damaged(format!("it has {len} bytes, which is no safetensors file")));
    }
    let mut prefix = [0; 8];
    read_exact_at(file, &mut prefix, 0).map_err(ConvertError::read(path))?;
    let header_len = u64::from_le_bytes(prefix);
    if header_len > MAX_HEADER || header_len > len - 8 {
        return Err(damaged(format!(
            "its header claims {header_len} bytes of a file of {len}: truncated or not safetensors"
        )));
    }
    let mut header = vec![0; header_len as usize];
    read_exact_at(file, &mut header, 8).map_err(ConvertError::read(path))?;
    let json = |source| damaged(format!("its header is not valid: {source}"));
    let mut values: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&header).map_err(json)?;
    values.remove("__metadata__");
    let mut entries = BTreeMap::new();
    for (name, value) in values {
        let entry = serde_json::from_value(value)
            .map_err(|e| damaged(format!("the entry of tensor {name} is not valid: {e}")))?;
        entries.insert(name, entry);
    }
    Ok((8 + header_len, entries))
}

/// Checks an entry against the file and places it.
fn locate(
    name: String,
    entry: Entry,
    shard: usize,
    data_start: u64,
    len: u64,
) -> Result<StoredTensor, String> {
    let [begin, end] = entry.data_offsets;
    let inside = begin <= end && end <= len - data_start;
    if !inside {
        return Err(format!(
            "tensor {name} ends at byte {end} of {} bytes of data: the file is truncated",
            len - data_start
        ));
    }
    if let Some(dtype) = Dtype::from_name(&entry.dtype) {
        let bytes = entry.shape.iter().try_fold(dtype.bytes() as u64, |product, &n| product.checked_mul(n));
        if bytes != Some(end - begin) {
            return Err(format!(
                "tensor {name} of {} {:?} does not take {} bytes",
                entry.dtype,
                entry.shape,
                end - begin
            ));
        }
    }
    Ok(StoredTensor { name, shape: entry.shape, dtype: entry.dtype, shard, offset: data_start + begin })
}

fn widen(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().zip(out).for_each(|(&b, x)| *x = f32::from_le_bytes(b)),
        Dtype::F16 => {
            bytes.as_chunks().0.iter().zip(out).for_each(|(&b, x)| *x = half::f16::from_le_bytes(b).to_f32());
        }
        Dtype::BF16 => {
            bytes
                .as_chunks()
                .0
                .iter()
                .zip(out)
                .for_each(|(&b, x)| *x = f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16));
        }
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> std::io::Result<()> {
    while !buffer.is_empty() {
        let n = std::os::windows::fs::FileExt::seek_read(file, buffer, offset)?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        buffer = &mut buffer[n..];
        offset += n as u64;
    }
    Ok(())
}
