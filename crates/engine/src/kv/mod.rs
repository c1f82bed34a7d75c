//! The key/value cache: blocks of positions shared by sequences.
//!
//! Each layer group (layers of one head shape and window) has a pool of blocks of [`BLOCK_LEN`] positions and an
//! allocator that counts references. A sequence is its block tables. Forking shares blocks; writing into a shared
//! one copies it first; truncation drops references; blocks that fell out of a sliding window are released.

mod allocator;
mod cache;
mod paths;
mod prefix;
mod sequence;
mod size;
pub mod store;

pub use cache::{KvCache, KvCacheConfig, SequenceId};
pub use prefix::Salt;
pub use size::KvSize;
pub use store::KvStore;

/// Positions a block.
pub const BLOCK_LEN: usize = 32;
