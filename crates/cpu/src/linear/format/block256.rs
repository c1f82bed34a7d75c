//! Scalar view of the formats with superblocks of 256.

use lapidary_gguf::block::{
    BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, IQ4_VALUES, scales_and_mins, widen,
};

use super::Block256;

/// Repeats each of 8 sub-block values for its two groups of 16.
fn twice<T: Into<i16>>(values: [T; 8], groups: &mut [i16; 16]) {
    for (i, value) in values.into_iter().enumerate() {
        let value = value.into();
        (groups[2 * i], groups[2 * i + 1]) = (value, value);
    }
}

impl Block256 for BlockQ2K {
    const OFFSET: i32 = 0;
    const MAX_CODE: i32 = 3;
    const HAS_MIN: bool = true;
    const SUB: usize = 16;

    fn scale(&self) -> f32 {
        widen(self.d)
    }

    fn neg_min_scale(&self) -> f32 {
        -widen(self.dmin)
    }

    fn groups(&self, scales: &mut [i16; 16], mins: &mut [i16; 16]) {
        for i in 0..16 {
            scales[i] = i16::from(self.scales[i] & 15);
            mins[i] = i16::from(self.scales[i] >> 4);
        }
    }

    fn codes(&self, codes: &mut [i8; 256]) {
        for (i, code) in codes.iter_mut().enumerate() {
            let (half, shift, l) = (i / 128, i / 32 % 4 * 2, i % 32);
            *code = (self.qs[32 * half + l] >> shift & 3) as i8;
        }
    }
}

impl Block256 for BlockQ3K {
    const OFFSET: i32 = 4;
    const MAX_CODE: i32 = 7;
    const SUB: usize = 16;

    fn scale(&self) -> f32 {
        widen(self.d)
    }

    fn groups(&self, scales: &mut [i16; 16], _mins: &mut [i16; 16]) {
        *scales = self.scales().map(i16::from);
    }

    fn codes(&self, codes: &mut [i8; 256]) {
        for (i, code) in codes.iter_mut().enumerate() {
            let (half, shift, l) = (i / 128, i / 32 % 4 * 2, i % 32);
            let low = self.qs[32 * half + l] >> shift & 3;
            let high = self.hmask[l] >> (i / 32) & 1;
            *code = (low | high << 2) as i8 - 4;
        }
    }
}

impl Block256 for BlockQ4K {
    const OFFSET: i32 = 0;
    const MAX_CODE: i32 = 15;
    const HAS_MIN: bool = true;
    const SUB: usize = 32;

    fn scale(&self) -> f32 {
        widen(self.d)
    }

    fn neg_min_scale(&self) -> f32 {
        -widen(self.dmin)
    }

    fn groups(&self, scales: &mut [i16; 16], mins: &mut [i16; 16]) {
        let (s, m) = scales_and_mins(&self.scales);
        twice(s, scales);
        twice(m, mins);
    }

    fn codes(&self, codes: &mut [i8; 256]) {
        for (i, code) in codes.iter_mut().enumerate() {
            *code = (self.qs[32 * (i / 64) + i % 32] >> (i / 32 % 2 * 4) & 15) as i8;
        }
    }
}

impl Block256 for BlockQ5K {
    const OFFSET: i32 = 0;
    const MAX_CODE: i32 = 31;
    const HAS_MIN: bool = true;
    const SUB: usize = 32;

    fn scale(&self) -> f32 {
        widen(self.d)
    }

    fn neg_min_scale(&self) -> f32 {
        -widen(self.dmin)
    }

    fn groups(&self, scales: &mut [i16; 16], mins: &mut [i16; 16]) {
        let (s, m) = scales_and_mins(&self.scales);
        twice(s, scales);
        twice(m, mins);
    }

    fn codes(&self, codes: &mut [i8; 256]) {
        for (i, code) in codes.iter_mut().enumerate() {
            let low = self.qs[32 * (i / 64) + i % 32] >> (i / 32 % 2 * 4) & 15;
            let high = self.qh[i % 32] >> (i / 32) & 1;
            *code = (low | high << 4) as i8;
        }
    }
}

impl Block256 for BlockQ6K {
    const OFFSET: i32 = 32;
    const MAX_CODE: i32 = 63;
    const SUB: usize = 16;

    fn scale(&self) -> f32 {
        widen(self.d)
    }

    fn groups(&self, scales: &mut [i16; 16], _mins: &mut [i16; 16]) {
        *scales = self.scales.map(i16::from);
    }

    fn codes(&self, codes: &mut [i8; 256]) {
        for (i, code) in codes.iter_mut().enumerate() {
            let (half, quarter, l) = (i / 128, i / 32 % 4, i % 32);
            let low = self.ql[64 * half + 32 * (quarter % 2) + l] >> (quarter / 2 * 4) & 15;
            let high = self.qh[32 * half + l] >> (2 * quarter) & 3;
            *code = (low | high << 4) as i8 - 32;
        }
    }
}

impl Block256 for BlockIq4Xs {
    const OFFSET: i32 = 0;
    const WIDE: bool = true;
    const MAX_CODE: i32 = 127;
    const SUB: usize = 32;

    fn scale(&self) -> f32 {
        widen(self.d)
    }

    fn groups(&self, scales: &mut [i16; 16], _mins: &mut [i16; 16]) {
        twice(self.scales(), scales);
    }

    fn codes(&self, codes: &mut [i8; 256]) {
        for (i, code) in codes.iter_mut().enumerate() {
            let nibble = self.qs[i / 32][i % 16] >> (i / 16 % 2 * 4) & 15;
            *code = IQ4_VALUES[usize::from(nibble)];
        }
    }
}
