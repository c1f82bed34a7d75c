//! GGUF container and GGML block formats.
//!
//! [`Gguf`] opens a model file (or the parts of a split one) by memory map and gives typed [`Metadata`] and
//! zero-copy tensor data; [`GgufWriter`] writes one as a stream. [`block`] decodes the element types. No engine types live here.

pub mod block;
pub mod bytes;
mod error;
mod file;
mod header;
mod metadata;
mod tensor;
pub mod types;
mod value;
mod value_from;
mod writer;

pub use bytes::SharedBytes;
pub use error::{GgufError, Result};
pub use file::Gguf;
pub use metadata::Metadata;
pub use tensor::TensorInfo;
pub use types::GgmlType;
pub use value::{Array, Strings, Value, ValueType};
pub use writer::{GgufDataWriter, GgufWriter, WriteError};
