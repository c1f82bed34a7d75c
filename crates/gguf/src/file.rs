//! A GGUF model: one file, or the parts of a split one.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::bytes::SharedBytes;
use crate::error::{GgufError, Result};
use crate::header::{Header, MAX_TENSORS};
use crate::metadata::Metadata;
use crate::tensor::TensorInfo;

/// Parts of a split model.
const MAX_PARTS: u32 = 9999;

/// An open model file.
#[derive(Debug)]
pub struct Gguf {
    parts: Vec<Part>,
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<Arc<str>, usize>,
}

#[derive(Debug)]
struct Part {
    file: String,
    bytes: SharedBytes,
    data_start: u64,
    alignment: u64,
}

impl Gguf {
    /// Opens a model by memory map. A split model is opened by its first part, `NAME-00001-of-0000N.gguf`.
    ///
    /// The file must not be changed while it is in use.
    ///
    /// # Errors
    /// When a file cannot be read, is no GGUF, is truncated, or contradicts itself.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut gguf = Self::from_bytes(map(path)?, &path.display().to_string())?;
        let count = gguf.metadata.opt_u32("split.count")?.unwrap_or(1);
        if count > 1 {
            gguf.add_parts(path, count)?;
        }
        Ok(gguf)
    }

    /// Reads a model from bytes; `name` stands for the file in errors. Of a split model, these are the tensors of
    /// the one part.
    ///
    /// # Errors
    /// When the bytes are no GGUF, truncated, or contradict themselves.
    pub fn from_bytes(bytes: SharedBytes, name: &str) -> Result<Self> {
        let header = Header::parse(&bytes, name)?;
        let mut gguf = Self {
            parts: Vec::new(),
            version: header.version,
            metadata: Metadata::default(),
            tensors: Vec::new(),
            index: HashMap::new(),
        };
        gguf.metadata = gguf.add_part(bytes, name, header)?;
        Ok(gguf)
    }

    /// Adds a part's tensors and returns its metadata.
    fn add_part(&mut self, bytes: SharedBytes, file: &str, header: Header) -> Result<Metadata> {
        let part = self.parts.len();
        check_extents(&header, bytes.len() as u64, file)?;
        if (self.tensors.len() + header.tensors.len()) as u64 > MAX_TENSORS {
            let problem = format!("the parts hold more than {MAX_TENSORS} tensors");
            return Err(GgufError::Split { file: file.into(), problem });
        }
        self.tensors.reserve_exact(header.tensors.len());
        self.index.reserve(header.tensors.len());
        for mut tensor in header.tensors {
            tensor.part = part;
            if self.index.insert(tensor.shared_name(), self.tensors.len()).is_some() {
                let problem = format!("tensor {} occurs twice", tensor.name());
                return Err(GgufError::Malformed { file: file.into(), problem });
            }
            self.tensors.push(tensor);
        }
        let (file, data_start, alignment) = (file.to_owned(), header.data_start, header.alignment);
        self.parts.push(Part { file, bytes, data_start, alignment });
        Ok(header.metadata)
    }

    fn add_parts(&mut self, first: &Path, count: u32) -> Result<()> {
        let split = |problem: String| GgufError::Split { file: first.display().to_string(), problem };
        if count > MAX_PARTS {
            return Err(split(format!("it claims {count} parts")));
        }
        let own = self.metadata.opt_u32("split.no")?.unwrap_or(0);
        if own != 0 {
            return Err(split(format!("this is part {} of {count}; open part 1", own + 1)));
        }
        let name = first.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let suffix = format!("-00001-of-{count:05}.gguf");
        let stem = name.strip_suffix(&suffix).ok_or_else(|| {
            split(format!("part 1 of {count} must be named NAME{suffix}, so that the others are found"))
        })?;
        for number in 2..=count {
            let path = first.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf"));
            let file = path.display().to_string();
            let bytes = map(&path)?;
            let header = Header::parse(&bytes, &file)?;
            let metadata = self.add_part(bytes, &file, header)?;
            let (no, of) = (metadata.u32("split.no")?, metadata.u32("split.count")?);
            if (no, of) != (number - 1, count) {
                let problem =
                    format!("its metadata says part {} of {of}, its name part {number} of {count}", no + 1);
                return Err(GgufError::Split { file, problem });
            }
        }
        match self.metadata.opt_u64("split.tensors.count")? {
            Some(n) if n != self.tensors.len() as u64 => Err(split(format!(
                "the parts hold {} tensors, split.tensors.count says {n}",
                self.tensors.len()
            ))),
            _ => Ok(()),
        }
    }

    /// Version of the format.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of tensor data in the first file, in bytes.
    pub fn alignment(&self) -> u64 {
        self.parts[0].alignment
    }

    /// The metadata (of the first part).
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// The data of a tensor of this model, without a copy.
    ///
    /// # Errors
    /// When its type is not one this engine reads.
    ///
    /// # Panics
    /// When the tensor belongs to another model.
    pub fn data(&self, tensor: &TensorInfo) -> Result<SharedBytes> {
        let ty = tensor.ty()?;
        let len = tensor.elements() / ty.block_len() as u64 * ty.block_bytes() as u64;
        let part = &self.parts[tensor.part];
        let start = part.data_start + tensor.offset;
        let range = start as usize..(start + len) as usize;
        Ok(part.bytes.slice(range).expect("extents were checked when the file was opened"))
    }

    /// Bytes of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.parts.iter().map(|p| p.bytes.len() as u64).sum()
    }

    /// Paths of the files: one, or the parts of a split model in their order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files().map(Path::new)
    }

    /// Names of the files.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|p| p.file.as_str())
    }
}

/// Tensors must lie inside the file, aligned, and must not overlap.
fn check_extents(header: &Header, file_len: u64, file: &str) -> Result<()> {
    let malformed = |problem: String| GgufError::Malformed { file: file.into(), problem };
    let mut extents = Vec::with_capacity(header.tensors.len());
    for (i, tensor) in header.tensors.iter().enumerate() {
        if !tensor.offset.is_multiple_of(header.alignment) {
            let (name, at, alignment) = (tensor.name(), tensor.offset, header.alignment);
            return Err(malformed(format!(
                "tensor {name} lies at {at}, which is not aligned to {alignment} bytes"
            )));
        }
        // The size of an unknown type is unknown; its first byte must still be inside.
        let len = tensor.bytes().unwrap_or(1);
        let start = header.data_start.checked_add(tensor.offset);
        let Some((start, end)) = start.and_then(|start| Some((start, start.checked_add(len)?))) else {
            return Err(malformed(format!("tensor {} lies beyond any file", tensor.name())));
        };
        extents.push((start, end, i));
    }
    extents.sort_unstable();
    check_inside(header, &extents, file_len, file)?;
    for pair in extents.windows(2) {
        if pair[0].1 > pair[1].0 {
            let [a, b] = [pair[0].2, pair[1].2].map(|i| header.tensors[i].name());
            return Err(malformed(format!("tensors {a} and {b} overlap")));
        }
    }
    Ok(())
}

/// `extents` are start, end and index of each tensor. Names the first that is cut off, counts all missing bytes.
fn check_inside(header: &Header, extents: &[(u64, u64, usize)], file_len: u64, file: &str) -> Result<()> {
    let needed = extents.iter().map(|&(_, end, _)| end).max().unwrap_or(0).saturating_sub(file_len);
    match extents.iter().find(|&&(_, end, _)| end > file_len) {
        Some(&(offset, _, i)) => {
            let (file, what) = (file.to_owned(), format!("tensor {}", header.tensors[i].name()));
            Err(GgufError::Truncated { file, what, offset, needed })
        }
        None => Ok(()),
    }
}

fn map(path: &Path) -> Result<SharedBytes> {
    let io = |source| GgufError::Io { path: PathBuf::from(path), source };
    let file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if metadata.is_dir() {
        return Err(io(std::io::ErrorKind::IsADirectory.into()));
    }
    if metadata.len() == 0 {
        return Ok(SharedBytes::from_static(&[]));
    }
    // SAFETY: the map is read-only. The caller keeps the file unchanged while it is open; a program that
    // truncates it meanwhile causes a bus error, as with every memory-mapped model.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
    Ok(SharedBytes::from_mmap(Arc::new(map)))
}
