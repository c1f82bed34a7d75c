//! Formats and shapes of the key/value cache.

pub mod levels;
pub mod rotation;
pub mod turbo;

use std::fmt;
use std::str::FromStr;

/// How key or value vectors are stored in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// 32-bit floats: exact.
    F32,
    /// IEEE half precision: half the bytes, round to nearest.
    F16,
    /// [TurboQuant](turbo) with 8 bits an element.
    Tq8,
    /// TurboQuant with 6 bits an element.
    Tq6,
    /// TurboQuant with 5 bits an element.
    Tq5,
    /// TurboQuant with 4 bits an element.
    Tq4,
}

impl KvFormat {
    /// All formats, the most exact first.
    pub const ALL: [Self; 6] = [Self::F32, Self::F16, Self::Tq8, Self::Tq6, Self::Tq5, Self::Tq4];

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Tq8 => "tq8",
            Self::Tq6 => "tq6",
            Self::Tq5 => "tq5",
            Self::Tq4 => "tq4",
        }
    }

    /// Bits of an element's code in a TurboQuant format; absent for floats.
    pub const fn turbo_bits(self) -> Option<u32> {
        match self {
            Self::F32 | Self::F16 => None,
            Self::Tq8 => Some(8),
            Self::Tq6 => Some(6),
            Self::Tq5 => Some(5),
            Self::Tq4 => Some(4),
        }
    }

    /// Whether blocks have an offset beside their scale.
    pub const fn has_offsets(self) -> bool {
        matches!(self, Self::Tq8 | Self::Tq6)
    }

    /// Whether heads of `head_dim` elements can be stored.
    pub const fn supports(self, head_dim: usize) -> bool {
        self.turbo_bits().is_none() || turbo::supports(head_dim)
    }

    /// Bytes of the elements of one stored vector.
    pub const fn code_bytes(self, head_dim: usize) -> usize {
        match self.turbo_bits() {
            None if matches!(self, Self::F32) => 4 * head_dim,
            None => 2 * head_dim,
            Some(bits) => head_dim.div_ceil(turbo::GROUP) * turbo::group_bytes(bits),
        }
    }

    /// Scales and offsets (`f32`) of one stored vector.
    pub const fn scale_count(self, head_dim: usize) -> usize {
        if self.turbo_bits().is_none() {
            return 0;
        }
        let blocks = head_dim / turbo::block_dim(head_dim);
        if self.has_offsets() { 2 * blocks } else { blocks }
    }

    /// Bytes of one stored vector of `head_dim` elements.
    pub const fn vector_bytes(self, head_dim: usize) -> usize {
        self.code_bytes(head_dim) + 4 * self.scale_count(head_dim)
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
    /// Checks that the formats can hold the heads.
    ///
    /// # Errors
    /// [`Unsupported`](crate::BackendError::Unsupported), in the name of `device`.
    pub fn check(&self, device: &str) -> crate::Result<()> {
        for format in [self.k_format, self.v_format] {
            if !format.supports(self.head_dim) {
                let what = format!(
                    "a {format} cache of heads of {} elements: TurboQuant formats hold 16, or multiples of {} up to \
                     {}; use f16",
                    self.head_dim,
                    turbo::GROUP,
                    rotation::MAX_DIM
                );
                return Err(crate::BackendError::Unsupported { device: device.to_owned(), what });
            }
        }
        Ok(())
    }

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
