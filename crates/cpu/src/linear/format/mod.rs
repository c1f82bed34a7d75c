//! Quantised block formats as the integer kernels see them.
//!
//! Every format is `weight = scale * (sub_scale *) code (- or + min)` with integer codes. A SIMD kernel works on
//! unsigned codes `code + OFFSET`, because the x86 dot products take one unsigned operand, and takes `OFFSET`
//! times the sum of the activations off again; integers make that exact.

pub(super) mod block256;
pub(super) mod block32;

use bytemuck::Pod;

/// A format with blocks of 32 weights and one scale each.
pub(super) trait Block32: Pod {
    /// What the SIMD decoder adds to a code to make it unsigned; a power of two, or 0.
    const OFFSET: i32;
    /// The codes need all 8 bits: SIMD decoders then return them signed and without offset.
    const WIDE: bool = false;
    /// The greatest unsigned code of the SIMD decoder, which bounds sums in 16 bits.
    const MAX_CODE: i32;
    /// Whether a block also has a minimum that is added to every weight.
    const HAS_MIN: bool = false;

    /// The factor of the codes.
    fn scale(&self) -> f32;
    /// What is added to every weight.
    fn min(&self) -> f32 {
        0.0
    }
    /// The signed codes, in the order of the columns.
    fn codes(&self, codes: &mut [i8; 32]);
}

/// A format with superblocks of 256 weights whose sub-blocks have integer scales.
pub(super) trait Block256: Pod {
    /// As in [`Block32`].
    const OFFSET: i32;
    /// As in [`Block32`].
    const WIDE: bool = false;
    /// As in [`Block32`].
    const MAX_CODE: i32;
    /// Whether sub-blocks also have integer minimums that are taken off every weight.
    const HAS_MIN: bool = false;
    /// Weights that share an integer scale: 16 or 32.
    const SUB: usize;

    /// The factor of the sub-scales.
    fn scale(&self) -> f32;
    /// The factor of the sub-minimums, negative because they are taken off.
    fn neg_min_scale(&self) -> f32 {
        0.0
    }
    /// The integer scale and minimum of each group of 16 weights (formats with `SUB` 32 repeat each value).
    fn groups(&self, scales: &mut [i16; 16], mins: &mut [i16; 16]);
    /// The signed codes, in the order of the columns.
    fn codes(&self, codes: &mut [i8; 256]);
}

/// Evaluates `$body` with `$block` naming the block struct of a type with blocks of 32.
macro_rules! for_block32 {
    ($ty:expr, $block:ident => $body:expr) => {{
        use lapidary_gguf::GgmlType;
        macro_rules! with {
            ($of:ident) => {{
                type $block = lapidary_gguf::block::$of;
                $body
            }};
        }
        match $ty {
            GgmlType::Q4_0 => with!(BlockQ4_0),
            GgmlType::Q4_1 => with!(BlockQ4_1),
            GgmlType::Q5_0 => with!(BlockQ5_0),
            GgmlType::Q5_1 => with!(BlockQ5_1),
            GgmlType::Q8_0 => with!(BlockQ8_0),
            GgmlType::IQ4_NL => with!(BlockIq4Nl),
            GgmlType::MXFP4 => with!(BlockMxfp4),
            other => unreachable!("{other} has no blocks of 32"),
        }
    }};
}
pub(super) use for_block32;

/// As [`for_block32`], for the types with superblocks.
macro_rules! for_block256 {
    ($ty:expr, $block:ident => $body:expr) => {{
        use lapidary_gguf::GgmlType;
        macro_rules! with {
            ($of:ident) => {{
                type $block = lapidary_gguf::block::$of;
                $body
            }};
        }
        match $ty {
            GgmlType::Q2_K => with!(BlockQ2K),
            GgmlType::Q3_K => with!(BlockQ3K),
            GgmlType::Q4_K => with!(BlockQ4K),
            GgmlType::Q5_K => with!(BlockQ5K),
            GgmlType::Q6_K => with!(BlockQ6K),
            GgmlType::IQ4_XS => with!(BlockIq4Xs),
            other => unreachable!("{other} has no superblocks"),
        }
    }};
}
pub(super) use for_block256;
