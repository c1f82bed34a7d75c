//! AVX2 decoding of the formats with blocks of 32.

use std::arch::x86_64::*;

use lapidary_gguf::block::{
    BlockIq4Nl, BlockMxfp4, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, IQ4_VALUES, MXFP4_VALUES,
};

use super::simd::{load, load_twice, widen8};
use crate::linear::format::Block32;

/// A format that AVX2 can decode.
pub(in crate::linear) trait Decode32: Block32 {
    /// The codes in column order: `code + OFFSET` unsigned, or signed for wide formats.
    unsafe fn unpack(&self) -> __m256i;
    /// The scales of eight blocks.
    unsafe fn scales(blocks: [&Self; 8]) -> __m256;
    /// The minimums of eight blocks.
    unsafe fn mins(_blocks: [&Self; 8]) -> __m256 {
        _mm256_setzero_ps()
    }
}

/// Low nibbles of 16 bytes in the lower half, high nibbles in the upper.
#[inline(always)]
unsafe fn nibbles(qs: &[u8; 16]) -> __m256i {
    let shifted = _mm256_srlv_epi64(load_twice(qs), _mm256_setr_epi64x(0, 0, 4, 4));
    _mm256_and_si256(shifted, _mm256_set1_epi8(15))
}

/// 16 in each byte whose bit is set.
#[inline(always)]
unsafe fn fifth_bits(qh: [u8; 4]) -> __m256i {
    let bits = _mm256_set1_epi32(i32::from_le_bytes(qh));
    let spread = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let own = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let bytes = _mm256_and_si256(_mm256_shuffle_epi8(bits, spread), own);
    _mm256_and_si256(_mm256_cmpeq_epi8(bytes, own), _mm256_set1_epi8(16))
}

/// Looks nibbles up in a table of 16 bytes.
#[inline(always)]
pub(super) unsafe fn look_up(table: &[i8; 16], nibbles: __m256i) -> __m256i {
    let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
    _mm256_shuffle_epi8(table, nibbles)
}

impl Decode32 for BlockQ4_0 {
    #[inline(always)]
    unsafe fn unpack(&self) -> __m256i {
        nibbles(&self.qs)
    }

    #[inline(always)]
    unsafe fn scales(blocks: [&Self; 8]) -> __m256 {
        widen8(blocks.map(|b| b.d))
    }
}

impl Decode32 for BlockQ4_1 {
    #[inline(always)]
    unsafe fn unpack(&self) -> __m256i {
        nibbles(&self.qs)
    }

    #[inline(always)]
    unsafe fn scales(blocks: [&Self; 8]) -> __m256 {
        widen8(blocks.map(|b| b.d))
    }

    #[inline(always)]
    unsafe fn mins(blocks: [&Self; 8]) -> __m256 {
        widen8(blocks.map(|b| b.m))
    }
}

impl Decode32 for BlockQ5_0 {
    #[inline(always)]
    unsafe fn unpack(&self) -> __m256i {
        _mm256_or_si256(nibbles(&self.qs), fifth_bits(self.qh))
    }

    #[inline(always)]
    unsafe fn scales(blocks: [&Self; 8]) -> __m256 {
        widen8(blocks.map(|b| b.d))
    }
}

impl Decode32 for BlockQ5_1 {
    #[inline(always)]
    unsafe fn unpack(&self) -> __m256i {
        _mm256_or_si256(nibbles(&self.qs), fifth_bits(self.qh))
    }

    #[inline(always)]
    unsafe fn scales(blocks: [&Self; 8]) -> __m256 {
        widen8(blocks.map(|b| b.d))
    }

    #[inline(always)]
    unsafe fn mins(blocks: [&Self; 8]) -> __m256 {
        widen8(blocks.map(|b| b.m))
    }
}

impl Decode32 for BlockQ8_0 {
    #[inline(always)]
    unsafe fn unpack(&self) -> __m256i {
        load(self.qs.as_ptr())
    }

    #[inline(always)]
    unsafe fn scales(blocks: [&Self; 8]) -> __m256 {
        widen8(blocks.map(|b| b.d))
    }
}

impl Decode32 for BlockIq4Nl {
    #[inline(always)]
    unsafe fn unpack(&self) -> __m256i {
        look_up(&IQ4_VALUES, nibbles(&self.qs))
    }

    #[inline(always)]
    unsafe fn scales(blocks: [&Self; 8]) -> __m256 {
        widen8(blocks.map(|b| b.d))
    }
}

/// [`MXFP4_VALUES`] with the format's offset of 16.
const MXFP4_OFFSET_VALUES: [i8; 16] = {
    let mut values = MXFP4_VALUES;
    let mut i = 0;
    while i < 16 {
        values[i] += <BlockMxfp4 as Block32>::OFFSET as i8;
        i += 1;
    }
    values
};

impl Decode32 for BlockMxfp4 {
    #[inline(always)]
    unsafe fn unpack(&self) -> __m256i {
        look_up(&MXFP4_OFFSET_VALUES, nibbles(&self.qs))
    }

    #[inline(always)]
    unsafe fn scales(blocks: [&Self; 8]) -> __m256 {
        let e = blocks.map(|b| i32::from(b.e));
        let e = _mm256_setr_epi32(e[0], e[1], e[2], e[3], e[4], e[5], e[6], e[7]);
        let one = _mm256_set1_epi32(1);
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, one));
        // 2^-128 and 2^-127 are subnormal.
        let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
        let is_normal = _mm256_cmpgt_epi32(e, one);
        _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal))
    }
}
