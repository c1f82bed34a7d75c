//! Putting planned tensors into a file.

use std::path::Path;
use std::time::Duration;

use lapidary_gguf::{GgufDataWriter, GgufWriter, WriteError};

use crate::error::{ConvertError, Result};
use crate::output::TempFile;
use crate::plan::PlannedTensor;
use crate::progress::{Cancel, Progress, Report};
use crate::stream::{self, Sink};

/// Where and how to write.
pub struct Target<'a> {
    pub path: &'a Path,
    pub threads: usize,
    pub cancel: &'a Cancel,
}

/// Sizes of a written file.
pub struct Written {
    pub tensors: usize,
    pub file_bytes: u64,
    pub data_bytes: u64,
    pub elements: u64,
}

impl Written {
    /// Sizes of what `writer` declares of `tensors`.
    pub fn planned(writer: &GgufWriter, tensors: &[PlannedTensor]) -> Result<Self> {
        Ok(Self {
            tensors: tensors.len(),
            file_bytes: writer.file_bytes(),
            data_bytes: tensors.iter().map(PlannedTensor::bytes).sum::<Result<u64>>()?,
            elements: tensors.iter().map(PlannedTensor::elements).sum(),
        })
    }

    /// The report of the work.
    pub fn report(&self, elapsed: Duration, notes: Vec<String>) -> Report {
        Report {
            tensors: self.tensors,
            bytes: self.file_bytes,
            bits_per_weight: 8.0 * self.data_bytes as f64 / self.elements.max(1) as f64,
            seconds: elapsed.as_secs_f64(),
            notes,
        }
    }
}

/// Declares the tensors.
pub fn declare(writer: &mut GgufWriter, tensors: &[PlannedTensor]) -> Result<()> {
    for tensor in tensors {
        writer.add_tensor(&tensor.name, &tensor.shape, tensor.ty)?;
    }
    Ok(())
}

/// Writes metadata and tensors under a temporary name and renames the file when it is complete.
pub fn write(
    target: &Target,
    mut writer: GgufWriter,
    tensors: &[PlannedTensor],
    progress: &mut dyn FnMut(Progress),
) -> Result<Written> {
    declare(&mut writer, tensors)?;
    let written = Written::planned(&writer, tensors)?;
    let needed = written.file_bytes;
    let failed = |source| ConvertError::Write { path: target.path.to_owned(), needed: Some(needed), source };
    let named = |error| match error {
        WriteError::Io(source) => failed(source),
        other => other.into(),
    };
    let file = TempFile::create(target.path).map_err(failed)?;
    let data = writer.begin(file).map_err(named)?;
    let mut sink =
        FileSink { data, names: tensors.iter().map(|t| t.name.as_str()), open: false, named: &named };
    stream::write_all(tensors, target.threads, &mut sink, progress, target.cancel)?;
    sink.data.finish().map_err(named)?.persist().map_err(failed)?;
    Ok(written)
}

struct FileSink<'a, I> {
    data: GgufDataWriter<TempFile>,
    names: I,
    open: bool,
    named: &'a dyn Fn(WriteError) -> ConvertError,
}

impl<'t, I: Iterator<Item = &'t str>> Sink for FileSink<'_, I> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if !self.open {
            let name = self.names.next().unwrap_or_default();
            self.data.start_tensor(name).map_err(self.named)?;
            self.open = true;
        }
        self.data.write(bytes).map_err(self.named)
    }

    fn end_tensor(&mut self) -> Result<()> {
        self.open = false;
        self.data.end_tensor().map_err(self.named)
    }
}
