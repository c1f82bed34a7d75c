//! Gemma on any backend.
//!
//! A [`Model`] is immutable weights and a [`Config`]. [`Model::forward`] sends a [`Batch`] of rows through it:
//! prefill is many rows of one sequence, decoding one row, serving one row from each of many sequences. Keys and
//! values live in a [`KvCache`]; a [`Workspace`] holds the activations between calls; a [`Probe`] observes.

pub mod batch;
mod error;
pub mod kv;
pub mod model;
pub mod probe;
pub mod quality;
pub mod sample;
mod session;
pub mod speculate;
pub mod tokenizer;

pub use batch::{Batch, Want};
pub use error::{EngineError, Result};
pub use kv::{KvCache, KvCacheConfig, SequenceId};
pub use model::{Config, Logits, Model, Output, Workspace};
pub use probe::{NoProbe, Point, Probe};
pub use sample::{Sampler, SamplerConfig};
pub use session::{DEFAULT_BATCH, Session, Step};
