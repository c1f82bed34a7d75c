//! Formats and shapes of the key/value cache.

use std::fmt;
use std::str::FromStr;

/// How key or value vectors are stored in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// 32-bit floats: exact.
    F32,
    /// IEEE half precision: half the bytes, round to nearest.
    F16,
}

impl KvFormat {
    /// All formats.
    pub const ALL: [Self; 2] = [Self::F32, Self::F16];

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    /// Bytes of one stored vector of `head_dim` elements.
    pub const fn vector_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F32 => 4 * head_dim,
            Self::F16 => 2 * head_dim,
        }
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KvFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|f| f.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| format!("no KV format '{name}'; known: {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Shape of a pool of cache blocks. One pool serves all layers of a group that share head shape and window.
///
/// A *cell* is the place of one position in all layers of the group; a block is `block_len` consecutive cells,
/// and cell `c` lies in block `c / block_len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPoolSpec {
    /// Layers that own keys and values in this pool.
    pub layers: usize,
    /// Key/value heads a layer.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Format of keys.
    pub k_format: KvFormat,
    /// Format of values.
    pub v_format: KvFormat,
    /// Positions a block.
    pub block_len: usize,
}

impl KvPoolSpec {
    /// Bytes of one position in all layers of the pool.
    pub const fn cell_bytes(&self) -> usize {
        let vectors = self.k_format.vector_bytes(self.head_dim) + self.v_format.vector_bytes(self.head_dim);
        self.layers * self.kv_heads * vectors
    }

    /// Bytes of one block.
    pub const fn block_bytes(&self) -> usize {
        self.block_len * self.cell_bytes()
    }
}
