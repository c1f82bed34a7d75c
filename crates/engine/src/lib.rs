//! Engine.

pub mod tokenizer;
