//! Reading and writing of GGUF files.

mod metadata;
mod properties;
mod raw;
mod reader;
mod split;
mod writer;
