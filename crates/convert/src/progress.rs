//! Telling the caller how far the work is, and being told to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::error::{ConvertError, Result};

/// How far the output has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The tensor being written.
    pub tensor: &'a str,
    /// Tensors written whole.
    pub tensors_done: usize,
    /// Tensors of the output.
    pub tensors: usize,
    /// Bytes of tensor data written.
    pub bytes_done: u64,
    /// Bytes of tensor data of the output.
    pub bytes: u64,
}

/// A switch that stops the work soon after it is thrown, from any thread or a signal handler.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A switch that is not thrown.
    pub fn new() -> Self {
        Self::default()
    }

    /// Throws the switch.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was thrown.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(ConvertError::Cancelled) } else { Ok(()) }
    }
}

/// What was written.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Tensors in the output.
    pub tensors: usize,
    /// Bytes of the output file.
    pub bytes: u64,
    /// Bytes of tensor data times 8 over elements.
    pub bits_per_weight: f64,
    /// Time taken.
    pub seconds: f64,
    /// What the caller should know: parts left out, rows cut, types that fell back.
    pub notes: Vec<String>,
}
