//! CUDA backend: kernels in CUDA C++, compiled at run time for the GPU that is there.
//!
//! [`CudaBackend`] implements [`lapidary_backend::Backend`]. The driver and NVRTC are loaded when a device is opened, so
//! a binary with this crate runs on machines without either. [`programs`] names the kernels' sources, [`compile`] makes
//! machine code of them, and [`cache`] keeps it on disk. Operations are enqueued on one stream; only downloads wait.
//! Activations are `f32` throughout and a row's result depends on that row alone, bit for bit.

mod arguments;
mod attention;
mod backend;
pub mod cache;
pub mod compile;
mod device;
mod error;
mod experts;
mod kv;
mod matrix;
mod memory;
pub mod programs;
mod queue;
mod rows;

pub use backend::{CudaBackend, CudaConfig};
pub use device::{Found, devices};
pub use error::CudaError;
pub use experts::CudaRouting;
pub use kv::CudaKvPool;
pub use matrix::CudaMatrix;
pub use memory::CudaBuffer;
pub use rows::CudaRows;
