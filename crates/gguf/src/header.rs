//! Reads the header of one GGUF file: metadata and the list of tensors.
//!
//! The format: magic `GGUF`, version (u32), tensor count and metadata count (u64), the metadata pairs, the tensor
//! infos, padding to the alignment, tensor data. Everything is little endian. Nothing is believed before it is
//! checked against the bytes that are really there. What is kept of an entry may be larger than its bytes in the
//! file, therefore the number of entries is limited too: memory stays within the file's size plus a constant.

use std::sync::Arc;

use crate::bytes::SharedBytes;
use crate::error::{GgufError, Result};
use crate::metadata::Metadata;
use crate::tensor::TensorInfo;
use crate::value::{Array, Strings, Value, ValueType};

/// Metadata entries of a file. Real models have fewer than a hundred.
pub const MAX_PAIRS: u64 = 16_384;
/// Tensors of a model, all parts together. The largest real ones have a few thousand.
pub const MAX_TENSORS: u64 = 65_536;
/// Arrays of arrays may nest this deep.
pub const MAX_NESTING: usize = 4;
/// Arrays inside arrays, in the whole file.
const MAX_INNER_ARRAYS: usize = 65_536;
/// Dimensions of a tensor.
pub const MAX_DIMS: usize = 4;
/// Longest key or tensor name, in bytes.
pub const MAX_NAME: u64 = 65_535;
/// Largest alignment of tensor data, in bytes.
pub const MAX_ALIGNMENT: u64 = 1 << 24;
/// A list that would take more bytes than this is a wrong count, not a file that was cut off.
const MAX_CREDIBLE_LIST: u64 = 1 << 30;
/// Smallest metadata pair: key length, one key byte, type, one byte of value.
const MIN_PAIR: u64 = 8 + 1 + 4 + 1;
/// Smallest tensor info: name length, one name byte, dimension count, type, offset.
const MIN_TENSOR: u64 = 8 + 1 + 4 + 4 + 8;

/// The parsed header of one file.
pub struct Header {
    pub version: u32,
    pub alignment: u64,
    pub metadata: Metadata,
    /// Offsets are relative to `data_start`.
    pub tensors: Vec<TensorInfo>,
    pub data_start: u64,
}

impl Header {
    /// Parses the header at the start of `bytes`; `file` names it in errors.
    pub fn parse(bytes: &SharedBytes, file: &str) -> Result<Self> {
        let mut reader = Reader { bytes, at: 0, file, inner_arrays: 0 };
        let version = reader.magic_and_version()?;
        let n_tensors = reader.u64("the tensor count")?;
        let n_pairs = reader.u64("the metadata count")?;
        reader.check_count("metadata entries", n_pairs, MIN_PAIR)?;
        reader.check_count("tensors", n_tensors, MIN_TENSOR)?;
        reader.check_limit("metadata entries", n_pairs, MAX_PAIRS)?;
        reader.check_limit("tensors", n_tensors, MAX_TENSORS)?;
        let metadata = reader.metadata(n_pairs)?;
        let alignment = reader.alignment(&metadata)?;
        let mut tensors = Vec::with_capacity(n_tensors as usize);
        for i in 0..n_tensors {
            tensors.push(reader.tensor(i)?);
        }
        let data_start = (reader.at as u64).div_ceil(alignment) * alignment;
        Ok(Self { version, alignment, metadata, tensors, data_start })
    }
}

/// A position in the file's bytes.
struct Reader<'a> {
    bytes: &'a SharedBytes,
    at: usize,
    file: &'a str,
    /// Arrays inside arrays met so far.
    inner_arrays: usize,
}

impl Reader<'_> {
    fn malformed(&self, problem: impl Into<String>) -> GgufError {
        GgufError::Malformed { file: self.file.into(), problem: problem.into() }
    }

    fn take(&mut self, n: u64, what: &str) -> Result<&[u8]> {
        let left = (self.bytes.len() - self.at) as u64;
        if n > left {
            let (file, what, offset) = (self.file.into(), what.into(), self.at as u64);
            return Err(GgufError::Truncated { file, what, offset, needed: n - left });
        }
        let start = self.at;
        self.at += n as usize;
        Ok(&self.bytes[start..self.at])
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4, what)?.try_into().expect("four bytes")))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8, what)?.try_into().expect("eight bytes")))
    }

    fn magic_and_version(&mut self) -> Result<u32> {
        if self.bytes.is_empty() {
            let (file, begins) = (self.file.into(), "nothing (the file is empty)".into());
            return Err(GgufError::NotGguf { file, begins });
        }
        let magic = &self.bytes[..self.bytes.len().min(4)];
        if magic != &b"GGUF"[..magic.len()] {
            let begins = format!("\"{}\"", self.bytes[..self.bytes.len().min(16)].escape_ascii());
            return Err(GgufError::NotGguf { file: self.file.into(), begins });
        }
        self.take(4, "the magic number")?;
        let version = self.u32("the version")?;
        if matches!(version, 2 | 3) {
            return Ok(version);
        }
        let file = self.file.into();
        if matches!(version.swap_bytes(), 1..=16) {
            return Err(GgufError::BigEndian { file, version });
        }
        let hint = if version == 1 { "; convert the model again with a current tool" } else { "" };
        Err(GgufError::Version { file, version, hint })
    }

    /// Refuses a count whose smallest encoding does not fit the rest of the file.
    fn check_count(&self, what: &str, count: u64, min_bytes: u64) -> Result<()> {
        let left = (self.bytes.len() - self.at) as u64;
        match count.checked_mul(min_bytes) {
            Some(needed) if needed <= left => Ok(()),
            Some(needed) if needed <= MAX_CREDIBLE_LIST => {
                let what = format!("the list of {count} {what}");
                let (file, offset) = (self.file.into(), self.at as u64);
                Err(GgufError::Truncated { file, what, offset, needed: needed - left })
            }
            _ => Err(self.malformed(format!(
                "it claims {count} {what}, more than its {left} remaining bytes can hold"
            ))),
        }
    }

    fn check_limit(&self, what: &str, count: u64, limit: u64) -> Result<()> {
        if count > limit {
            return Err(self.malformed(format!("it claims {count} {what}, at most {limit} can be read")));
        }
        Ok(())
    }

    fn string(&mut self, what: &str, max: u64) -> Result<SharedBytes> {
        let len = self.u64(what)?;
        if len > max {
            return Err(
                self.malformed(format!("{what} claims a length of {len} bytes, at most {max} are allowed"))
            );
        }
        let start = self.at;
        self.take(len, what)?;
        Ok(self.bytes.slice(start..self.at).expect("a range that was just read"))
    }

    fn name(&mut self, what: &str) -> Result<Arc<str>> {
        let bytes = self.string(what, MAX_NAME)?;
        if bytes.is_empty() {
            return Err(self.malformed(format!("{what} is empty")));
        }
        match std::str::from_utf8(&bytes) {
            Ok(name) => Ok(name.into()),
            Err(_) => Err(self.malformed(format!("{what} \"{}\" is not UTF-8", excerpt(&bytes)))),
        }
    }

    fn metadata(&mut self, n_pairs: u64) -> Result<Metadata> {
        let mut metadata = Metadata::default();
        for i in 0..n_pairs {
            let key = self.name(&format!("key {i} of the metadata"))?;
            let ty = self.value_type(&key)?;
            let value = self.value(&key, ty)?;
            if !metadata.insert(Arc::clone(&key), value) {
                return Err(self.malformed(format!("metadata key '{key}' occurs twice")));
            }
        }
        Ok(metadata)
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType> {
        let id = self.u32(key)?;
        ValueType::from_id(id)
            .ok_or_else(|| self.malformed(format!("metadata key '{key}' has the unknown value type {id}")))
    }

    fn value(&mut self, key: &str, ty: ValueType) -> Result<Value> {
        Ok(match ty {
            ValueType::String => Value::String(self.string(key, u64::MAX)?),
            ValueType::Array => Value::Array(self.array(key, 1)?),
            fixed => {
                let size = fixed.fixed_bytes().expect("a type of fixed size") as u64;
                let start = self.at;
                self.take(size, key)?;
                self.check_bools(key, fixed, start)?;
                Value::from_fixed(fixed, &self.bytes[start..self.at])
            }
        })
    }

    fn array(&mut self, key: &str, depth: usize) -> Result<Array> {
        let ty = self.value_type(key)?;
        let count = self.u64(key)?;
        match (ty, ty.fixed_bytes()) {
            (_, Some(size)) => {
                self.check_count(&format!("elements of '{key}'"), count, size as u64)?;
                let start = self.at;
                self.take(count * size as u64, key)?;
                self.check_bools(key, ty, start)?;
                Ok(Array::Fixed(ty, self.bytes.slice(start..self.at).expect("a range that was just read")))
            }
            (ValueType::String, _) => Ok(Array::Strings(self.strings(key, count)?)),
            _ if depth >= MAX_NESTING => {
                Err(self.malformed(format!("metadata key '{key}' nests arrays deeper than {MAX_NESTING}")))
            }
            _ => {
                // Element type and count of each inner array.
                self.check_count(&format!("arrays in '{key}'"), count, 12)?;
                let mut arrays = Vec::new();
                for _ in 0..count {
                    self.inner_arrays += 1;
                    if self.inner_arrays > MAX_INNER_ARRAYS {
                        let problem = format!("it holds more than {MAX_INNER_ARRAYS} arrays inside arrays");
                        return Err(self.malformed(problem));
                    }
                    arrays.push(self.array(key, depth + 1)?);
                }
                Ok(Array::Nested(arrays))
            }
        }
    }

    /// A boolean is stored as 0 or 1; other bytes show that something else was written there.
    fn check_bools(&self, key: &str, ty: ValueType, start: usize) -> Result<()> {
        let bytes = &self.bytes[start..self.at];
        match bytes.iter().find(|&&byte| ty == ValueType::Bool && byte > 1) {
            Some(byte) => {
                Err(self.malformed(format!("metadata key '{key}' has the boolean {byte}, not 0 or 1")))
            }
            None => Ok(()),
        }
    }

    fn strings(&mut self, key: &str, count: u64) -> Result<Strings> {
        self.check_count(&format!("strings in '{key}'"), count, 8)?;
        let begin = self.at;
        let mut starts = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let len = self.u64(key)?;
            let start = u32::try_from(self.at - begin)
                .map_err(|_| self.malformed(format!("the strings of '{key}' take more than 4 GiB")))?;
            starts.push(start);
            self.take(len, key)?;
        }
        Ok(Strings::new(self.bytes.slice(begin..self.at).expect("a range that was just read"), starts))
    }

    fn alignment(&self, metadata: &Metadata) -> Result<u64> {
        let alignment = metadata.opt_u64("general.alignment")?.unwrap_or(32);
        if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
            return Ok(alignment);
        }
        Err(self.malformed(format!(
            "general.alignment is {alignment}, not a power of two from 1 to {MAX_ALIGNMENT}"
        )))
    }

    fn tensor(&mut self, index: u64) -> Result<TensorInfo> {
        let name = self.name(&format!("the name of tensor {index}"))?;
        let n_dims = self.u32(&name)? as usize;
        if n_dims > MAX_DIMS {
            return Err(self.malformed(format!(
                "tensor {name} has {n_dims} dimensions, at most {MAX_DIMS} are allowed"
            )));
        }
        // A scalar may be written without dimensions; it is read as a vector of one element.
        let mut shape = Vec::with_capacity(n_dims.max(1));
        for _ in 0..n_dims {
            shape.push(self.u64(&name)?);
        }
        if shape.is_empty() {
            shape.push(1);
        }
        let type_id = self.u32(&name)?;
        let offset = self.u64(&name)?;
        TensorInfo::new(name, shape, type_id, offset).map_err(|problem| self.malformed(problem))
    }
}

fn excerpt(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(40)].escape_ascii().to_string()
}
