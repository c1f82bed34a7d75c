//! CPU backend: SIMD kernels picked at run time and a worker pool.
//!
//! [`CpuBackend`] implements [`lapidary_backend::Backend`]. Matrix products live in [`linear`]; every other
//! operation has a file of its own. Their loops are written once over sixteen lanes (`simd`) and compiled for each
//! instruction set, with the same bits on all of them. A row's result depends on that row alone: not on the other
//! rows of the batch, the number of threads, the block size of the cache or the instruction set.

mod activation;
mod attention;
mod backend;
mod bandwidth;
mod buffer;
mod embed;
mod experts;
mod kv;
pub mod linear;
mod math;
mod matrix;
mod norm;
mod parallel;
pub mod pool;
mod rope;
mod screen;
mod self_test;
mod simd;

pub use backend::{CpuBackend, CpuConfig, CpuRouting};
pub use bandwidth::read_bandwidth;
pub use buffer::CpuBuffer;
pub use kv::CpuKvPool;
pub use linear::{ActivationMode, Isa};
pub use matrix::CpuMatrix;
pub use self_test::self_test;
