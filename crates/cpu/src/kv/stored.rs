//! Elements of keys and values as they are stored.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};
use half::f16;
use half::slice::HalfFloatSliceExt;
use lapidary_backend::kv::levels::levels;

use crate::simd::{Chunk, LANES, Simd};

/// Elements that are stored together: two chunks.
pub(crate) const GROUP: usize = 2 * LANES;

/// What it takes to make `f32` of stored elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Widening {
    /// Nothing.
    None,
    /// A conversion.
    Cheap,
    /// A look at a table: dear where vectors have eight lanes.
    Costly,
}

/// A group of 32 elements as stored. For the TurboQuant formats these are the codes' levels, to be multiplied by the
/// scale of their block.
pub(crate) trait Stored: Pod + Send + Sync {
    /// What loading costs.
    const WIDENING: Widening;

    /// What loading needs beside the group itself.
    type Table: Copy;

    /// Makes the table.
    fn table() -> Self::Table;

    /// The elements as `f32`.
    fn load<S: Simd>(&self, s: S, table: Self::Table) -> [S::F; 2];
}

/// 32-bit floats.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct F32([Chunk; 2]);

impl Stored for F32 {
    const WIDENING: Widening = Widening::None;
    type Table = ();

    fn table() {}

    #[inline(always)]
    fn load<S: Simd>(&self, s: S, (): ()) -> [S::F; 2] {
        [s.load(&self.0[0]), s.load(&self.0[1])]
    }
}

impl F32 {
    /// Writes a vector, padded with zeros.
    pub(super) fn write(from: &[f32], to: &mut [Self]) {
        let to: &mut [f32] = bytemuck::cast_slice_mut(to);
        to[..from.len()].copy_from_slice(from);
    }
}

/// Half precision.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct F16([[f16; LANES]; 2]);

impl Stored for F16 {
    const WIDENING: Widening = Widening::Cheap;
    type Table = ();

    fn table() {}

    #[inline(always)]
    fn load<S: Simd>(&self, s: S, (): ()) -> [S::F; 2] {
        [s.load_f16(&self.0[0]), s.load_f16(&self.0[1])]
    }
}

impl F16 {
    /// Rounds a vector to nearest, padded with zeros.
    pub(super) fn write(from: &[f32], to: &mut [Self]) {
        let to: &mut [f16] = bytemuck::cast_slice_mut(to);
        to[..from.len()].convert_from_f32_slice(from);
    }
}

/// Codes of `tq8`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct Tq8(pub(super) [[i8; LANES]; 2]);

impl Stored for Tq8 {
    const WIDENING: Widening = Widening::Cheap;
    type Table = ();

    fn table() {}

    #[inline(always)]
    fn load<S: Simd>(&self, s: S, (): ()) -> [S::F; 2] {
        [s.load_i8(&self.0[0]), s.load_i8(&self.0[1])]
    }
}

/// Codes of `tq4`: signs and indices in nibbles.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct Tq4(pub(super) [u8; LANES]);

impl Stored for Tq4 {
    const WIDENING: Widening = Widening::Costly;
    type Table = &'static [f32; 16];

    /// The positive levels, then the negative ones.
    fn table() -> Self::Table {
        static TABLE: LazyLock<[f32; 16]> = LazyLock::new(|| {
            let levels = levels(4);
            std::array::from_fn(|i| if i < 8 { levels[i] } else { -levels[i - 8] })
        });
        &TABLE
    }

    #[inline(always)]
    fn load<S: Simd>(&self, s: S, table: Self::Table) -> [S::F; 2] {
        s.nibble_levels(&self.0, table)
    }
}

/// Codes of `tq5`: indices in nibbles, then the signs of each half.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Tq5 {
    pub(super) low: [u8; LANES],
    pub(super) negative: [u16; 2],
}

impl Stored for Tq5 {
    const WIDENING: Widening = Widening::Costly;
    type Table = &'static [f32; 16];

    /// The positive levels.
    fn table() -> Self::Table {
        levels(5).first_chunk().expect("sixteen positive levels")
    }

    #[inline(always)]
    fn load<S: Simd>(&self, s: S, table: Self::Table) -> [S::F; 2] {
        let v = s.nibble_levels(&self.low, table);
        [s.negate_where(self.negative[0], v[0]), s.negate_where(self.negative[1], v[1])]
    }
}

/// Codes of `tq6`: low bits in nibbles, then the high two bits of four elements a byte.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Tq6 {
    pub(super) low: [u8; LANES],
    pub(super) high: [u8; LANES / 2],
}

impl Stored for Tq6 {
    const WIDENING: Widening = Widening::Cheap;
    type Table = ();

    fn table() {}

    #[inline(always)]
    fn load<S: Simd>(&self, s: S, (): ()) -> [S::F; 2] {
        s.load_i6(&self.low, &self.high)
    }
}
