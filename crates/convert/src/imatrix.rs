//! Importance matrices: how much each column of a weight matrix matters, measured on text.
//!
//! Read in both forms that llama.cpp writes: a GGUF file with sums of squared activations (`NAME.in_sum2`) and counts
//! (`NAME.counts`), and the older binary list of entries.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lapidary_gguf::{Gguf, GgufWriter, Metadata, TensorInfo, WriteError, block};

use crate::error::{ConvertError, Result};

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// Importance of weights by tensor.
#[derive(Clone, Debug)]
pub struct Imatrix {
    path: PathBuf,
    /// Mean squared activations: one value a column, for each matrix of a stack.
    entries: BTreeMap<String, Vec<f32>>,
    datasets: Vec<String>,
    chunks: u32,
}

impl Imatrix {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, is no importance matrix, or holds numbers that are not finite.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut magic = [0; 4];
        let mut file = std::fs::File::open(path).map_err(ConvertError::read(path))?;
        std::io::Read::read_exact(&mut file, &mut magic).map_err(ConvertError::read(path))?;
        let imatrix = if &magic == b"GGUF" { Self::from_gguf(path)? } else { Self::from_list(path)? };
        for (name, values) in &imatrix.entries {
            if values.iter().any(|x| !x.is_finite()) {
                let problem =
                    format!("{}: the entry of {name} holds numbers that are not finite", path.display());
                return Err(ConvertError::Imatrix(problem));
            }
        }
        Ok(imatrix)
    }

    /// Number of tensors with an entry.
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// The weights of a tensor.
    pub(crate) fn weights(&self, tensor: &str) -> Option<&[f32]> {
        self.entries.get(tensor).map(Vec::as_slice)
    }

    /// Notes in a quantised file where its importance weights came from.
    pub(crate) fn describe(&self, writer: &mut GgufWriter) -> Result<(), WriteError> {
        writer.set("quantize.imatrix.file", self.path.to_string_lossy().into_owned())?;
        if let Some(dataset) = self.datasets.first() {
            writer.set("quantize.imatrix.dataset", dataset.as_str())?;
        }
        writer.set("quantize.imatrix.entries_count", self.entries.len() as u32)?;
        if self.chunks > 0 {
            writer.set("quantize.imatrix.chunks_count", self.chunks)?;
        }
        Ok(())
    }

    fn from_gguf(path: &Path) -> Result<Self> {
        let gguf = Gguf::open(path)?;
        let mut entries = BTreeMap::new();
        for info in gguf.tensors() {
            let Some(name) = info.name().strip_suffix(SUMS) else { continue };
            let counts = gguf.tensor(&format!("{name}{COUNTS}")).ok_or_else(|| {
                ConvertError::Imatrix(format!("{} has no tensor {name}{COUNTS}", path.display()))
            })?;
            let mean = mean(&floats(&gguf, info)?, &floats(&gguf, counts)?)
                .map_err(|p| ConvertError::Imatrix(format!("{}: the entry of {name} {p}", path.display())))?;
            entries.insert(name.to_owned(), mean);
        }
        if entries.is_empty() {
            let problem = format!("{} has no tensors named *{SUMS}", path.display());
            return Err(ConvertError::Imatrix(problem));
        }
        let datasets = datasets(gguf.metadata())?;
        let chunks = gguf.metadata().opt_u32("imatrix.chunk_count")?.unwrap_or(0);
        Ok(Self { path: path.to_owned(), entries, datasets, chunks })
    }

    fn from_list(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(ConvertError::read(path))?;
        let wrong = || {
            ConvertError::Imatrix(format!(
                "{} is neither GGUF nor an older importance matrix",
                path.display()
            ))
        };
        let mut list = List { bytes: &bytes };
        let count = list.int().ok_or_else(wrong)?;
        let mut entries = BTreeMap::new();
        for _ in 0..count {
            let (name, values) = list.entry().ok_or_else(wrong)?;
            entries.insert(name, values);
        }
        if entries.is_empty() {
            return Err(wrong());
        }
        // Chunk count and data set stand behind the entries in newer files only.
        let chunks = list.int().unwrap_or(0) as u32;
        let datasets = list.text().into_iter().collect();
        Ok(Self { path: path.to_owned(), entries, datasets, chunks })
    }
}

fn floats(gguf: &Gguf, info: &TensorInfo) -> Result<Vec<f32>> {
    let mut values = vec![0.0; info.elements() as usize];
    block::dequantize(info.ty()?, &gguf.data(info)?, &mut values)
        .map_err(|e| ConvertError::Imatrix(format!("tensor {}: {e}", info.name())))?;
    Ok(values)
}

/// Sums over counts; a matrix that no row reached weighs all columns alike.
fn mean(sums: &[f32], counts: &[f32]) -> Result<Vec<f32>, String> {
    if counts.is_empty() || !sums.len().is_multiple_of(counts.len()) {
        return Err(format!("has {} sums for {} counts", sums.len(), counts.len()));
    }
    let columns = sums.len() / counts.len();
    let of = |(i, &sum): (usize, &f32)| match counts[i / columns] {
        // Counts are whole numbers, stored as floats.
        count if count.round() > 0.0 => sum / count.round(),
        _ => 1.0,
    };
    Ok(sums.iter().enumerate().map(of).collect())
}

fn datasets(metadata: &Metadata) -> Result<Vec<String>> {
    const KEY: &str = "imatrix.datasets";
    if metadata.get(KEY).is_none() {
        return Ok(Vec::new());
    }
    Ok(metadata.strings(KEY)?.iter().map(|s| String::from_utf8_lossy(s).into_owned()).collect())
}

/// The older binary form.
struct List<'a> {
    bytes: &'a [u8],
}

impl List<'_> {
    fn take(&mut self, len: usize) -> Option<&[u8]> {
        let (head, tail) = self.bytes.split_at_checked(len)?;
        self.bytes = tail;
        Some(head)
    }

    /// A number that is not negative.
    fn int(&mut self) -> Option<usize> {
        let bytes = self.take(4)?.try_into().ok()?;
        usize::try_from(i32::from_le_bytes(bytes)).ok()
    }

    fn text(&mut self) -> Option<String> {
        let len = self.int()?;
        self.take(len).map(|s| String::from_utf8_lossy(s).into_owned())
    }

    fn entry(&mut self) -> Option<(String, Vec<f32>)> {
        let name = self.text()?;
        let calls = self.int()?.max(1) as f32;
        let count = self.int()?;
        let values = self.take(count.checked_mul(4)?)?;
        let value = |&b: &[u8; 4]| f32::from_le_bytes(b) / calls;
        Some((name, values.as_chunks().0.iter().map(value).collect()))
    }
}
