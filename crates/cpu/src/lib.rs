//! CPU backend.
pub mod linear;
pub mod pool;
