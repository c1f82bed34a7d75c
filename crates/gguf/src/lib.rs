//! GGUF container and GGML block formats.

pub mod bytes;
pub mod types;

pub use bytes::SharedBytes;
pub use types::GgmlType;
