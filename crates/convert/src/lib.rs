//! Making GGUF files: out of Hugging Face checkpoints ([`convert`]), out of other GGUF files ([`quantize`]), and out of
//! random numbers ([`synthesize`]).
//!
//! All plan the whole output first (names, shapes, types, sizes), so that what is wrong is said before anything is
//! written; then they stream: worker threads read, convert and encode a few rows at a time, the calling thread writes
//! them in order to a temporary file, which takes its final name at the very end.

mod error;
mod file_type;
mod hf;
mod imatrix;
mod mix;
mod output;
mod plan;
mod progress;
mod quantize;
mod safetensors;
mod stream;
mod synth;
mod write;

pub use error::{ConvertError, Result};
pub use file_type::FileType;
pub use hf::{ConvertOptions, convert};
pub use imatrix::Imatrix;
pub use mix::Overrides;
pub use progress::{Cancel, Progress, Report};
pub use quantize::{PlanRow, QuantizeOptions, QuantizePlan, plan_quantize, quantize};
pub use synth::{SyntheticKind, SyntheticOptions, SyntheticTensor, plan_synthetic, synthesize};
