//! CPU backend: SIMD kernels picked at run time and a worker pool.

mod isa;
pub mod linear;
mod math;
pub mod pool;
mod simd;

pub use isa::Isa;
