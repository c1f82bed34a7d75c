//! The bounds with AVX2: a tile's eight rows in the eight lanes of a vector.
//!
//! A block of 4-bit columns is four loads, each split into two vectors of codes; their eight products with four
//! broadcast activations add up in 16 bits (at most 8 * 2 * 15 * 127 = 30480) and are widened once.

// One contract covers these functions; an unsafe block around every intrinsic would only repeat it.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::x86_64::*;

use super::Query;
use super::layout::{BLOCK, Layout, NARROW_BYTES, NUMBERS, TILE, WIDE_BYTES};

/// Bytes ahead of the present ones that are asked for.
const AHEAD: usize = 4096;

/// An upper bound of the product of each row of `tiles`.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn bounds(layout: &Layout, query: &Query, tiles: &[u8], out: &mut [f32]) {
    assert_eq!(query.codes.len(), layout.order.len());
    assert!(query.scales.len() * BLOCK == layout.order.len() && query.offsets.len() == query.scales.len());
    let (tile_bytes, n_blocks) = (layout.tile_bytes(), query.scales.len());
    let ones = _mm256_set1_epi16(1);
    let low_half = _mm256_set1_epi8(15);
    for (tile, out) in tiles.chunks_exact(tile_bytes).zip(out.chunks_exact_mut(TILE)) {
        let mut at = tile.as_ptr();
        let mut sum = _mm256_setzero_ps();
        for b in 0..layout.wide {
            prefetch::<WIDE_BYTES>(at);
            let x = query.codes.as_ptr().add(b * BLOCK);
            let mut products = _mm256_setzero_si256();
            for g in 0..8 {
                let codes = _mm256_loadu_si256(at.add(32 * g).cast());
                let x = _mm256_set1_epi32(x.add(4 * g).cast::<i32>().read_unaligned());
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
                products = _mm256_add_epi32(products, _mm256_madd_epi16(pairs, ones));
            }
            let scale =
                _mm256_mul_ps(numbers(at.add(TILE * BLOCK)), _mm256_set1_ps(*query.scales.get_unchecked(b)));
            sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), scale, sum);
            at = at.add(WIDE_BYTES);
        }
        for b in layout.wide..n_blocks {
            prefetch::<NARROW_BYTES>(at);
            let x = query.codes.as_ptr().add(b * BLOCK);
            let mut pairs = _mm256_setzero_si256();
            for g in 0..4 {
                let codes = _mm256_loadu_si256(at.add(32 * g).cast());
                let low = _mm256_and_si256(codes, low_half);
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low_half);
                let x_low = _mm256_set1_epi32(x.add(4 * g).cast::<i32>().read_unaligned());
                let x_high = _mm256_set1_epi32(x.add(16 + 4 * g).cast::<i32>().read_unaligned());
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(low, x_low));
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(high, x_high));
            }
            let offset = _mm256_set1_epi32(*query.offsets.get_unchecked(b));
            let products = _mm256_sub_epi32(_mm256_madd_epi16(pairs, ones), offset);
            let scale = _mm256_mul_ps(
                numbers(at.add(TILE * BLOCK / 2)),
                _mm256_set1_ps(*query.scales.get_unchecked(b)),
            );
            sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), scale, sum);
            at = at.add(NARROW_BYTES);
        }
        for &factor in query.segments.iter().chain(&query.parts) {
            sum = _mm256_fmadd_ps(numbers(at), _mm256_set1_ps(factor), sum);
            at = at.add(NUMBERS);
        }
        debug_assert_eq!(at, tile.as_ptr_range().end);
        _mm256_storeu_ps(out.as_mut_ptr(), sum);
    }
}

/// Eight half floats.
#[inline(always)]
unsafe fn numbers(at: *const u8) -> __m256 {
    _mm256_cvtph_ps(_mm_loadu_si128(at.cast()))
}

/// Asks for the cache lines of `BYTES` bytes, some way ahead of `at`.
#[inline(always)]
unsafe fn prefetch<const BYTES: usize>(at: *const u8) {
    for line in 0..BYTES.div_ceil(64) {
        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD + 64 * line).cast());
    }
}
