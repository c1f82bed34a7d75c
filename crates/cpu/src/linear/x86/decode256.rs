//! AVX2 decoding of the formats with superblocks of 256.

use std::arch::x86_64::*;

use lapidary_gguf::block::{BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, Half, IQ4_VALUES};

use super::decode32::look_up;
use super::simd::{load, load_twice, widen8};
use crate::linear::format::Block256;

/// A format that AVX2 can decode.
pub(in crate::linear) trait Decode256: Block256 {
    /// The codes of columns `32 C..32 C + 32`: `code + OFFSET` unsigned, or signed for wide formats.
    unsafe fn unpack<const C: usize>(&self) -> __m256i;
    /// The integer scales and minimums of the sixteen groups of 16, as 16-bit lanes.
    unsafe fn group_vectors(&self) -> (__m256i, __m256i);
    /// The stored scale.
    fn scale_half(&self) -> Half;
    /// The stored scale of the minimums.
    fn min_half(&self) -> Half {
        [0; 2]
    }

    /// The scales of eight superblocks.
    #[inline(always)]
    unsafe fn scales(blocks: [&Self; 8]) -> __m256 {
        widen8(blocks.map(Self::scale_half))
    }

    /// The negated scales of the minimums of eight superblocks.
    #[inline(always)]
    unsafe fn neg_min_scales(blocks: [&Self; 8]) -> __m256 {
        _mm256_xor_ps(widen8(blocks.map(Self::min_half)), _mm256_set1_ps(-0.0))
    }
}

/// `v` moved by whole bits so that bit `from` of every byte comes to bit `to` (both known after inlining); what
/// comes over from neighbouring bytes is for the caller to mask.
#[inline(always)]
unsafe fn shift_to(v: __m256i, from: usize, to: usize) -> __m256i {
    match from as isize - to as isize {
        0 => v,
        1 => _mm256_srli_epi16::<1>(v),
        2 => _mm256_srli_epi16::<2>(v),
        3 => _mm256_srli_epi16::<3>(v),
        4 => _mm256_srli_epi16::<4>(v),
        5 => _mm256_srli_epi16::<5>(v),
        6 => _mm256_srli_epi16::<6>(v),
        -1 => _mm256_slli_epi16::<1>(v),
        -2 => _mm256_slli_epi16::<2>(v),
        -3 => _mm256_slli_epi16::<3>(v),
        _ => _mm256_slli_epi16::<4>(v),
    }
}

/// The bits of every byte under `mask`, after bit `from` came to bit `to`.
#[inline(always)]
unsafe fn bits(v: __m256i, from: usize, to: usize, mask: i8) -> __m256i {
    _mm256_and_si256(shift_to(v, from, to), _mm256_set1_epi8(mask))
}

/// Eight bytes, each repeated for its two groups, as 16-bit lanes.
#[inline(always)]
unsafe fn twice(values: u64) -> __m256i {
    let v = _mm_cvtsi64_si128(values as i64);
    _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(v, v))
}

#[inline(always)]
fn word(packed: &[u8; 12], at: usize) -> u32 {
    u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]])
}

/// The eight scales and minimums of Q4_K and Q5_K (`scales_and_mins` without branches), as bytes.
#[inline(always)]
fn six_bit_pairs(packed: &[u8; 12]) -> (u64, u64) {
    let (first, second, third) = (word(packed, 0), word(packed, 4), word(packed, 8));
    let scales_high = (third & 0x0f0f_0f0f) | ((first >> 6 & 0x0303_0303) << 4);
    let mins_high = (third >> 4 & 0x0f0f_0f0f) | ((second >> 6 & 0x0303_0303) << 4);
    let join = |low: u32, high: u32| u64::from(low & 0x3f3f_3f3f) | u64::from(high) << 32;
    (join(first, scales_high), join(second, mins_high))
}

impl Decode256 for BlockQ2K {
    #[inline(always)]
    unsafe fn unpack<const C: usize>(&self) -> __m256i {
        bits(load(self.qs.as_ptr().add(32 * (C / 4))), 2 * (C % 4), 0, 3)
    }

    #[inline(always)]
    unsafe fn group_vectors(&self) -> (__m256i, __m256i) {
        let packed = _mm_loadu_si128(self.scales.as_ptr().cast());
        let mask = _mm_set1_epi8(15);
        let scales = _mm_and_si128(packed, mask);
        let mins = _mm_and_si128(_mm_srli_epi16::<4>(packed), mask);
        (_mm256_cvtepu8_epi16(scales), _mm256_cvtepu8_epi16(mins))
    }

    #[inline(always)]
    fn scale_half(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn min_half(&self) -> Half {
        self.dmin
    }
}

impl Decode256 for BlockQ3K {
    #[inline(always)]
    unsafe fn unpack<const C: usize>(&self) -> __m256i {
        let low = bits(load(self.qs.as_ptr().add(32 * (C / 4))), 2 * (C % 4), 0, 3);
        _mm256_or_si256(low, bits(load(self.hmask.as_ptr()), C, 2, 4))
    }

    #[inline(always)]
    unsafe fn group_vectors(&self) -> (__m256i, __m256i) {
        const NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        let lower = u64::from(word(&self.scales, 0)) | u64::from(word(&self.scales, 4)) << 32;
        let upper = word(&self.scales, 8);
        let pair = |shift: u32| {
            let low = (upper >> shift & 0x0303_0303) << 4;
            let high = (upper >> (shift + 2) & 0x0303_0303) << 4;
            u64::from(low) | u64::from(high) << 32
        };
        let (first, second) = ((lower & NIBBLES) | pair(0), (lower >> 4 & NIBBLES) | pair(4));
        let scales = _mm256_cvtepu8_epi16(_mm_set_epi64x(second as i64, first as i64));
        (_mm256_sub_epi16(scales, _mm256_set1_epi16(32)), _mm256_setzero_si256())
    }

    #[inline(always)]
    fn scale_half(&self) -> Half {
        self.d
    }
}

impl Decode256 for BlockQ4K {
    #[inline(always)]
    unsafe fn unpack<const C: usize>(&self) -> __m256i {
        bits(load(self.qs.as_ptr().add(32 * (C / 2))), 4 * (C % 2), 0, 15)
    }

    #[inline(always)]
    unsafe fn group_vectors(&self) -> (__m256i, __m256i) {
        let (scales, mins) = six_bit_pairs(&self.scales);
        (twice(scales), twice(mins))
    }

    #[inline(always)]
    fn scale_half(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn min_half(&self) -> Half {
        self.dmin
    }
}

impl Decode256 for BlockQ5K {
    #[inline(always)]
    unsafe fn unpack<const C: usize>(&self) -> __m256i {
        let low = bits(load(self.qs.as_ptr().add(32 * (C / 2))), 4 * (C % 2), 0, 15);
        _mm256_or_si256(low, bits(load(self.qh.as_ptr()), C, 4, 16))
    }

    #[inline(always)]
    unsafe fn group_vectors(&self) -> (__m256i, __m256i) {
        let (scales, mins) = six_bit_pairs(&self.scales);
        (twice(scales), twice(mins))
    }

    #[inline(always)]
    fn scale_half(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn min_half(&self) -> Half {
        self.dmin
    }
}

impl Decode256 for BlockQ6K {
    #[inline(always)]
    unsafe fn unpack<const C: usize>(&self) -> __m256i {
        let (half, quarter) = (C / 4, C % 4);
        let low = load(self.ql.as_ptr().add(64 * half + 32 * (quarter % 2)));
        let high = load(self.qh.as_ptr().add(32 * half));
        _mm256_or_si256(bits(low, 4 * (quarter / 2), 0, 15), bits(high, 2 * quarter, 4, 48))
    }

    #[inline(always)]
    unsafe fn group_vectors(&self) -> (__m256i, __m256i) {
        let scales = _mm256_cvtepi8_epi16(_mm_loadu_si128(self.scales.as_ptr().cast()));
        (scales, _mm256_setzero_si256())
    }

    #[inline(always)]
    fn scale_half(&self) -> Half {
        self.d
    }
}

impl Decode256 for BlockIq4Xs {
    #[inline(always)]
    unsafe fn unpack<const C: usize>(&self) -> __m256i {
        let shifted = _mm256_srlv_epi64(load_twice(&self.qs[C]), _mm256_setr_epi64x(0, 0, 4, 4));
        look_up(&IQ4_VALUES, _mm256_and_si256(shifted, _mm256_set1_epi8(15)))
    }

    #[inline(always)]
    unsafe fn group_vectors(&self) -> (__m256i, __m256i) {
        // Nibble pairs and bit pairs spread to one byte a sub-block, all in one register.
        let low = u64::from(u32::from_le_bytes(self.scales_l));
        let high = u64::from(u16::from_le_bytes(self.scales_h));
        let low = (low | low << 16) & 0x0000_ffff_0000_ffff;
        let low = (low | low << 8) & 0x00ff_00ff_00ff_00ff;
        let low = (low | low << 4) & 0x0f0f_0f0f_0f0f_0f0f;
        let high = (high | high << 24) & 0x0000_00ff_0000_00ff;
        let high = (high | high << 12) & 0x000f_000f_000f_000f;
        let high = (high | high << 6) & 0x0303_0303_0303_0303;
        (_mm256_sub_epi16(twice(low | high << 4), _mm256_set1_epi16(32)), _mm256_setzero_si256())
    }

    #[inline(always)]
    fn scale_half(&self) -> Half {
        self.d
    }
}
