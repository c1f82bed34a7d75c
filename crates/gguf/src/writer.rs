//! Writes GGUF files as a stream: metadata and tensor list first, then the data of one tensor after the other.
//!
//! The bytes are those that GGML's own writer makes of the same content: version 3, little endian, trailing
//! dimensions of one element left out, everything padded with zeros to the alignment, also after the last tensor.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Arc;

use crate::header::{MAX_ALIGNMENT, MAX_DIMS, MAX_NAME, MAX_NESTING, MAX_PAIRS, MAX_TENSORS};
use crate::metadata::Metadata;
use crate::tensor::TensorInfo;
use crate::types::GgmlType;
use crate::value::{Array, Value, ValueType};

const VERSION: u32 = 3;
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Names in GGML have this many bytes with their final zero; longer ones are refused by its reader.
const MAX_TENSOR_NAME: usize = 63;

/// Bytes of all tensors together.
const MAX_DATA: u64 = 1 << 60;

/// What can go wrong when a GGUF file is written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The output does not take the bytes.
    #[error("cannot write: {0}")]
    Io(#[from] io::Error),
    /// A metadata entry that a GGUF file cannot hold.
    #[error("metadata key '{key}': {problem}")]
    Metadata {
        /// The key.
        key: String,
        /// What is wrong.
        problem: String,
    },
    /// A tensor that a GGUF file cannot hold.
    #[error("tensor '{name}': {problem}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// Data of another tensor than the next one declared.
    #[error(
        "data of tensor '{found}' was given where that of {expected} was expected; write tensors as declared"
    )]
    Order {
        /// The next tensor, or that there is none.
        expected: String,
        /// The tensor given.
        found: String,
    },
    /// A tensor's data is not as long as its shape and type say.
    #[error("tensor '{name}' takes {expected} bytes, {found} were given")]
    Length {
        /// The tensor.
        name: String,
        /// Bytes by shape and type.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// The file was finished before all tensors were written.
    #[error("{missing} declared tensors have no data, the first is '{first}'")]
    Missing {
        /// How many.
        missing: usize,
        /// The first of them.
        first: String,
    },
}

/// Collects metadata and tensor declarations; [`begin`](Self::begin) writes them and opens the data section.
#[derive(Debug, Default)]
pub struct GgufWriter {
    metadata: Vec<(Arc<str>, Value)>,
    tensors: Vec<TensorInfo>,
    names: HashSet<Arc<str>>,
    /// Bytes of the declared tensors, without padding.
    data_bytes: u64,
}

impl GgufWriter {
    /// A file with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a metadata entry. A key that is set again moves to the end, as in GGML's writer.
    ///
    /// # Errors
    /// When key or value cannot be stored.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<(), WriteError> {
        let value = value.into();
        check_entry(key, &value)
            .map_err(|problem| WriteError::Metadata { key: key.into(), problem: problem.into() })?;
        self.remove(key);
        if self.metadata.len() as u64 == MAX_PAIRS {
            let problem = format!("a file holds at most {MAX_PAIRS} entries");
            return Err(WriteError::Metadata { key: key.into(), problem });
        }
        self.metadata.push((key.into(), value));
        Ok(())
    }

    /// Removes a metadata entry; whether it was there.
    pub fn remove(&mut self, key: &str) -> bool {
        let before = self.metadata.len();
        self.metadata.retain(|(k, _)| &**k != key);
        self.metadata.len() < before
    }

    /// Sets all entries of another file, in its order. Their bytes are shared, not copied.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn set_all(&mut self, metadata: &Metadata) -> Result<(), WriteError> {
        metadata.iter().try_for_each(|(key, value)| self.set(key, value.clone()))
    }

    /// Declares the next tensor. `shape` has the fastest dimension first.
    ///
    /// # Errors
    /// When the name is taken or too long for GGML, or the shape does not go with the type.
    pub fn add_tensor(&mut self, name: &str, shape: &[u64], ty: GgmlType) -> Result<(), WriteError> {
        let wrong = |problem: String| WriteError::Tensor { name: name.into(), problem };
        if name.is_empty() || name.len() > MAX_TENSOR_NAME {
            return Err(wrong(format!("names take 1 to {MAX_TENSOR_NAME} bytes")));
        }
        if self.tensors.len() as u64 == MAX_TENSORS {
            return Err(wrong(format!("a file holds at most {MAX_TENSORS} tensors")));
        }
        if shape.is_empty() || shape.len() > MAX_DIMS {
            return Err(wrong(format!("it has {} dimensions, not 1 to {MAX_DIMS}", shape.len())));
        }
        let significant = shape.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1);
        let name: Arc<str> = name.into();
        let info = TensorInfo::new(Arc::clone(&name), shape[..significant].to_vec(), ty as u32, 0);
        let info = info.map_err(wrong)?;
        let data_bytes = self.data_bytes + stored_bytes(&info);
        if data_bytes > MAX_DATA {
            return Err(wrong(format!("the file would have more than {MAX_DATA} bytes")));
        }
        if !self.names.insert(name) {
            return Err(wrong("it is declared twice".into()));
        }
        self.tensors.push(info);
        self.data_bytes = data_bytes;
        Ok(())
    }

    fn alignment(&self) -> u64 {
        let stored = self.metadata.iter().find(|(key, _)| &**key == ALIGNMENT_KEY);
        stored.and_then(|(_, value)| value.as_u64()).unwrap_or(DEFAULT_ALIGNMENT)
    }

    /// Bytes that the finished file will have.
    pub fn file_bytes(&self) -> u64 {
        let alignment = self.alignment();
        let data: u64 = self.tensors.iter().map(|t| stored_bytes(t).next_multiple_of(alignment)).sum();
        self.header().len() as u64 + data
    }

    /// Writes metadata and tensor list to `out`, which should buffer, and opens the data section.
    ///
    /// # Errors
    /// When the output fails.
    pub fn begin<W: Write>(self, mut out: W) -> Result<GgufDataWriter<W>, WriteError> {
        out.write_all(&self.header())?;
        let alignment = self.alignment();
        Ok(GgufDataWriter { out, alignment, tensors: self.tensors, next: 0, open: None })
    }

    /// Everything before the data section, with its padding.
    fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut out, key.as_bytes());
            out.extend((value.value_type() as u32).to_le_bytes());
            put_value(&mut out, value);
        }
        let alignment = self.alignment();
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_string(&mut out, tensor.name().as_bytes());
            out.extend((tensor.shape().len() as u32).to_le_bytes());
            tensor.shape().iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(tensor.type_id().to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += stored_bytes(tensor).next_multiple_of(alignment);
        }
        out.resize(out.len().next_multiple_of(alignment as usize), 0);
        out
    }
}

/// Writes the data section: every declared tensor, in the order of declaration.
#[derive(Debug)]
pub struct GgufDataWriter<W> {
    out: W,
    alignment: u64,
    tensors: Vec<TensorInfo>,
    next: usize,
    /// Bytes written of the tensor that was started.
    open: Option<u64>,
}

impl<W: Write> GgufDataWriter<W> {
    /// The tensor whose data comes next.
    pub fn next_tensor(&self) -> Option<&TensorInfo> {
        self.tensors.get(self.next)
    }

    /// Writes the whole data of the next tensor.
    ///
    /// # Errors
    /// When it is not `name`'s turn, the length is wrong or the output fails.
    pub fn write_tensor(&mut self, name: &str, data: &[u8]) -> Result<(), WriteError> {
        self.start_tensor(name)?;
        self.write(data)?;
        self.end_tensor()
    }

    /// Begins the next tensor, whose data then comes in pieces by [`write`](Self::write).
    ///
    /// # Errors
    /// When it is not `name`'s turn.
    pub fn start_tensor(&mut self, name: &str) -> Result<(), WriteError> {
        let expected = match (self.open, self.next_tensor()) {
            (None, Some(next)) if next.name() == name => {
                self.open = Some(0);
                return Ok(());
            }
            (None, Some(next)) => format!("'{}'", next.name()),
            (None, None) => "no tensor".into(),
            (Some(_), next) => format!("the rest of '{}'", next.map_or("", TensorInfo::name)),
        };
        Err(WriteError::Order { expected, found: name.into() })
    }

    /// Writes a piece of the tensor that was started.
    ///
    /// # Errors
    /// When the tensor would become too long, or the output fails.
    ///
    /// # Panics
    /// When no tensor was started.
    pub fn write(&mut self, piece: &[u8]) -> Result<(), WriteError> {
        let written = self.open.expect("a tensor was started") + piece.len() as u64;
        if written > stored_bytes(&self.tensors[self.next]) {
            return Err(self.wrong_length(written));
        }
        self.out.write_all(piece)?;
        self.open = Some(written);
        Ok(())
    }

    /// Ends the tensor that was started.
    ///
    /// # Errors
    /// When bytes are missing, or the output fails.
    ///
    /// # Panics
    /// When no tensor was started.
    pub fn end_tensor(&mut self) -> Result<(), WriteError> {
        let written = self.open.expect("a tensor was started");
        if written != stored_bytes(&self.tensors[self.next]) {
            return Err(self.wrong_length(written));
        }
        let padding = written.next_multiple_of(self.alignment) - written;
        io::copy(&mut io::Read::take(io::repeat(0), padding), &mut self.out)?;
        self.open = None;
        self.next += 1;
        Ok(())
    }

    fn wrong_length(&self, found: u64) -> WriteError {
        let tensor = &self.tensors[self.next];
        WriteError::Length { name: tensor.name().into(), expected: stored_bytes(tensor), found }
    }

    /// Ends the file and gives the flushed output back.
    ///
    /// # Errors
    /// When tensors are missing, or the output fails.
    pub fn finish(mut self) -> Result<W, WriteError> {
        if let Some(first) = self.next_tensor() {
            let (missing, first) = (self.tensors.len() - self.next, first.name().into());
            return Err(WriteError::Missing { missing, first });
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

fn stored_bytes(tensor: &TensorInfo) -> u64 {
    tensor.bytes().expect("only types of known size are declared")
}

fn check_entry(key: &str, value: &Value) -> Result<(), &'static str> {
    if key.is_empty() || key.len() as u64 > MAX_NAME {
        return Err("keys take 1 to 65535 bytes");
    }
    if key == ALIGNMENT_KEY {
        return match value {
            Value::Unsigned(ValueType::U32, n) if n.is_power_of_two() && *n <= MAX_ALIGNMENT => Ok(()),
            _ => Err("the alignment is a u32 and a power of two up to 16777216"),
        };
    }
    check_value(value)
}

/// Whether the value is what its type says; the enums allow to build values that no file can hold.
fn check_value(value: &Value) -> Result<(), &'static str> {
    use ValueType::{F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    let fits = match value {
        Value::Unsigned(ty, n) => {
            matches!(ty, U8 | U16 | U32 | U64) && bits(*ty) >= u64::BITS - n.leading_zeros()
        }
        Value::Signed(ty, n) => {
            let magnitude = if *n < 0 { !*n } else { *n };
            matches!(ty, I8 | I16 | I32 | I64) && bits(*ty) > i64::BITS - magnitude.leading_zeros()
        }
        Value::Float(ty, _) => matches!(ty, F32 | F64),
        Value::Bool(_) | Value::String(_) => true,
        Value::Array(array) => return check_array(array, 1),
    };
    if fits { Ok(()) } else { Err("the value is not one of its type") }
}

fn bits(ty: ValueType) -> u32 {
    8 * ty.fixed_bytes().unwrap_or(0) as u32
}

fn check_array(array: &Array, depth: usize) -> Result<(), &'static str> {
    match array {
        Array::Fixed(ty, bytes) => match ty.fixed_bytes() {
            Some(size) if bytes.len().is_multiple_of(size) => Ok(()),
            _ => Err("the array's bytes are not whole values of its type"),
        },
        Array::Strings(_) => Ok(()),
        Array::Nested(_) if depth == MAX_NESTING => Err("arrays nest too deep"),
        Array::Nested(arrays) => arrays.iter().try_for_each(|inner| check_array(inner, depth + 1)),
    }
}

fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let size = value.value_type().fixed_bytes().unwrap_or(0);
    match value {
        Value::Unsigned(_, n) => out.extend(&n.to_le_bytes()[..size]),
        Value::Signed(_, n) => out.extend(&n.to_le_bytes()[..size]),
        Value::Float(ValueType::F32, x) => out.extend((*x as f32).to_le_bytes()),
        Value::Float(_, x) => out.extend(x.to_le_bytes()),
        Value::Bool(b) => out.push(u8::from(*b)),
        Value::String(bytes) => put_string(out, bytes),
        Value::Array(array) => put_array(out, array),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend((array.element_type() as u32).to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::Fixed(_, bytes) => out.extend(&**bytes),
        Array::Strings(strings) => out.extend(strings.stored()),
        Array::Nested(arrays) => arrays.iter().for_each(|inner| put_array(out, inner)),
    }
}
