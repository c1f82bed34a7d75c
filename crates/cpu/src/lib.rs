//! CPU backend.
pub mod pool;
