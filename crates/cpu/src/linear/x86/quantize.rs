//! Rounding of activations with AVX2; the arithmetic is that of `activations.rs`.

use std::arch::x86_64::*;

use crate::linear::activations::{Out32, Out256, factors, factors256, group_factor};

/// Rounds a row to blocks of 32.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::linear) unsafe fn row32(x: &[f32], out: Out32) {
    for (b, (x, codes)) in x.chunks_exact(32).zip(out.codes.chunks_exact_mut(32)).enumerate() {
        let (inverse, scale) = factors(magnitude_bits(x));
        let sum = match inverse {
            Some(inverse) => {
                let rounded = round32(x, inverse);
                _mm256_storeu_si256(codes.as_mut_ptr().cast(), rounded);
                sum_bytes(rounded)
            }
            None => {
                codes.fill(0);
                0
            }
        };
        out.scales[b] = scale;
        out.neg_sums[b] = -sum;
        out.scaled_sums[b] = scale * sum as f32;
    }
}

/// Rounds a row to superblocks.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::linear) unsafe fn row256(x: &[f32], out: Out256) {
    for (b, (x, codes)) in x.chunks_exact(256).zip(out.codes.chunks_exact_mut(256)).enumerate() {
        let mut group_bits = [0u32; 8];
        for (bits, x) in group_bits.iter_mut().zip(x.chunks_exact(32)) {
            *bits = magnitude_bits(x);
        }
        let amax_bits = group_bits.into_iter().fold(0, u32::max);
        let (inverse, scale) = factors256(amax_bits);
        out.scales[b] = scale;
        let sums = &mut out.sums[16 * b..16 * b + 16];
        let shifts = &mut out.shifts[8 * b..8 * b + 8];
        let Some(inverse) = inverse else {
            codes.fill(0);
            sums.fill(0);
            shifts.fill(0);
            continue;
        };
        for (c, (x, codes)) in x.chunks_exact(32).zip(codes.chunks_exact_mut(32)).enumerate() {
            let (shift, factor) = group_factor(inverse, amax_bits, group_bits[c]);
            let rounded = round32(x, factor);
            _mm256_storeu_si256(codes.as_mut_ptr().cast(), rounded);
            let (low, high) = sum_halves(rounded);
            shifts[c] = shift;
            (sums[2 * c], sums[2 * c + 1]) = (low << shift, high << shift);
        }
    }
}

/// The bits of the greatest magnitude, infinities and NaNs above all numbers.
#[inline(always)]
unsafe fn magnitude_bits(x: &[f32]) -> u32 {
    let mask = _mm256_set1_epi32(0x7fff_ffff);
    let mut max = _mm256_setzero_si256();
    for x in x.chunks_exact(8) {
        let bits = _mm256_castps_si256(_mm256_loadu_ps(x.as_ptr()));
        max = _mm256_max_epu32(max, _mm256_and_si256(bits, mask));
    }
    let max = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
    let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
    let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
    _mm_cvtsi128_si32(max) as u32
}

/// The codes of 32 finite numbers.
#[inline(always)]
unsafe fn round32(x: &[f32], inverse: f32) -> __m256i {
    let inverse = _mm256_set1_ps(inverse);
    let eight =
        |i: usize| _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x[8 * i..8 * i + 8].as_ptr()), inverse));
    let low = _mm256_packs_epi32(eight(0), eight(1));
    let high = _mm256_packs_epi32(eight(2), eight(3));
    // Packing works within halves; the permutation restores the order.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order)
}

/// The sums of bytes 0-15 and 16-31.
#[inline(always)]
unsafe fn sum_halves(codes: __m256i) -> (i16, i16) {
    // Sums of absolute differences add bytes, but unsigned ones: shift the range up and take the shift off.
    let sums = _mm256_sad_epu8(_mm256_xor_si256(codes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    let pairs = _mm256_add_epi64(sums, _mm256_srli_si256::<8>(sums));
    let low = _mm_cvtsi128_si32(_mm256_castsi256_si128(pairs)) - 128 * 16;
    let high = _mm_cvtsi128_si32(_mm256_extracti128_si256::<1>(pairs)) - 128 * 16;
    (low as i16, high as i16)
}

#[inline(always)]
unsafe fn sum_bytes(codes: __m256i) -> i32 {
    let (low, high) = sum_halves(codes);
    i32::from(low) + i32::from(high)
}
