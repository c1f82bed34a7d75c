//! Errors of the container and its metadata.

use std::path::PathBuf;

/// Result of a GGUF operation.
pub type Result<T, E = GgufError> = std::result::Result<T, E>;

/// What can be wrong with a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be opened or mapped.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The file is of another kind.
    #[error("{file} is not a GGUF file: it begins with {begins}, not \"GGUF\"")]
    NotGguf {
        /// The file.
        file: String,
        /// Its first bytes, printable.
        begins: String,
    },
    /// A version this reader does not know.
    #[error("{file} is GGUF version {version}; versions 2 and 3 can be read{hint}")]
    Version {
        /// The file.
        file: String,
        /// The version found.
        version: u32,
        /// What may be the reason.
        hint: &'static str,
    },
    /// A file for machines of the other byte order.
    #[error(
        "{file} is a big-endian GGUF file (its version reads as {version}); only little-endian files can be read: \
         convert it again, or swap its bytes with a converter"
    )]
    BigEndian {
        /// The file.
        file: String,
        /// The version as little-endian bytes give it.
        version: u32,
    },
    /// The file ends too early.
    #[error("{file} is truncated: {what} at byte {offset} needs {needed} more bytes than the file has")]
    Truncated {
        /// The file.
        file: String,
        /// What was being read.
        what: String,
        /// Where it begins.
        offset: u64,
        /// Bytes missing.
        needed: u64,
    },
    /// A value in the header that cannot be true.
    #[error("{file} is damaged: {problem}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong, and where.
        problem: String,
    },
    /// A part of a split model.
    #[error("{file}: {problem}")]
    Split {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A metadata key that must be there is not.
    #[error("the file has no metadata key '{0}'")]
    MissingKey(String),
    /// A metadata value of the wrong type.
    #[error("metadata key '{key}' holds {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// The type wanted.
        expected: &'static str,
        /// The type or value found.
        found: String,
    },
    /// Two arrays that must be equally long are not.
    #[error("metadata key '{key}' has {len} elements, '{other}' has {expected}; they must agree")]
    LengthMismatch {
        /// One array's key.
        key: String,
        /// Its length.
        len: usize,
        /// The other array's key.
        other: String,
        /// Its length.
        expected: usize,
    },
    /// A tensor stored in a type this engine does not read.
    #[error("tensor {tensor} is of type {ty}, which this engine does not read; known: {known}")]
    TensorType {
        /// The tensor.
        tensor: String,
        /// Its type, by name or id.
        ty: String,
        /// The types that can be read.
        known: String,
    },
}
