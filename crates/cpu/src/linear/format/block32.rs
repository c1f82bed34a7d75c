//! Scalar view of the formats with blocks of 32.

use lapidary_gguf::block::{
    BlockIq4Nl, BlockMxfp4, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, IQ4_VALUES, MXFP4_VALUES,
    mxfp4_scale, widen,
};

use super::Block32;

/// Nibbles of 16 bytes in column order, passed through `value`.
#[inline(always)]
fn nibbles(qs: &[u8; 16], codes: &mut [i8; 32], value: impl Fn(u8) -> i8) {
    for j in 0..16 {
        codes[j] = value(qs[j] & 15);
        codes[j + 16] = value(qs[j] >> 4);
    }
}

/// Adds 16 to the codes whose bit in `qh` is set.
#[inline(always)]
fn fifth_bits(qh: [u8; 4], codes: &mut [i8; 32]) {
    let bits = u32::from_le_bytes(qh);
    for j in 0..32 {
        codes[j] += ((bits >> j & 1) << 4) as i8;
    }
}

impl Block32 for BlockQ4_0 {
    const OFFSET: i32 = 8;
    const MAX_CODE: i32 = 15;

    fn scale(&self) -> f32 {
        widen(self.d)
    }

    fn codes(&self, codes: &mut [i8; 32]) {
        nibbles(&self.qs, codes, |q| q as i8 - 8);
    }
}

impl Block32 for BlockQ4_1 {
    const OFFSET: i32 = 0;
    const MAX_CODE: i32 = 15;
    const HAS_MIN: bool = true;

    fn scale(&self) -> f32 {
        widen(self.d)
    }

    fn min(&self) -> f32 {
        widen(self.m)
    }

    fn codes(&self, codes: &mut [i8; 32]) {
        nibbles(&self.qs, codes, |q| q as i8);
    }
}

impl Block32 for BlockQ5_0 {
    const OFFSET: i32 = 16;
    const MAX_CODE: i32 = 31;

    fn scale(&self) -> f32 {
        widen(self.d)
    }

    fn codes(&self, codes: &mut [i8; 32]) {
        nibbles(&self.qs, codes, |q| q as i8 - 16);
        fifth_bits(self.qh, codes);
    }
}

impl Block32 for BlockQ5_1 {
    const OFFSET: i32 = 0;
    const MAX_CODE: i32 = 31;
    const HAS_MIN: bool = true;

    fn scale(&self) -> f32 {
        widen(self.d)
    }

    fn min(&self) -> f32 {
        widen(self.m)
    }

    fn codes(&self, codes: &mut [i8; 32]) {
        nibbles(&self.qs, codes, |q| q as i8);
        fifth_bits(self.qh, codes);
    }
}

impl Block32 for BlockQ8_0 {
    const OFFSET: i32 = 0;
    const WIDE: bool = true;
    const MAX_CODE: i32 = 128;

    fn scale(&self) -> f32 {
        widen(self.d)
    }

    fn codes(&self, codes: &mut [i8; 32]) {
        *codes = self.qs;
    }
}

impl Block32 for BlockIq4Nl {
    const OFFSET: i32 = 0;
    const WIDE: bool = true;
    const MAX_CODE: i32 = 127;

    fn scale(&self) -> f32 {
        widen(self.d)
    }

    fn codes(&self, codes: &mut [i8; 32]) {
        nibbles(&self.qs, codes, |q| IQ4_VALUES[usize::from(q)]);
    }
}

impl Block32 for BlockMxfp4 {
    const OFFSET: i32 = 16;
    const MAX_CODE: i32 = 28;

    fn scale(&self) -> f32 {
        mxfp4_scale(self.e)
    }

    fn codes(&self, codes: &mut [i8; 32]) {
        nibbles(&self.qs, codes, |q| MXFP4_VALUES[usize::from(q)]);
    }
}
