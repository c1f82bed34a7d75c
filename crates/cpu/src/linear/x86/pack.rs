//! Decoding of a tile of weight rows into the interleaved form of the matrix-matrix kernels.
//!
//! A packed block holds, for `T` weight rows:
//! - codes: for each group of 4 columns, 4 bytes of each row;
//! - superblocks only: for each sub-block a 32-bit lane of each row with its integer scale (as a number for VNNI,
//!   twice as 16 bits for AVX2); for each pair of groups of 16 a lane with two 16-bit numbers that are multiplied
//!   with the activations' sums: the minimums, or the scales times the format's negative offset;
//! - the scale of each row as a float, and the (negated) minimum or its scale where the format has one.

use std::arch::x86_64::*;

use super::decode32::Decode32;
use super::decode256::Decode256;
use super::simd::{Dot, transpose8};

/// Bytes of a packed block of 32.
pub(super) const fn bytes32<B: Decode32, const T: usize>() -> usize {
    T * (32 + 4 + if B::HAS_MIN { 4 } else { 0 })
}

/// Bytes of a packed superblock.
pub(super) const fn bytes256<B: Decode256, D: Dot, const T: usize>() -> usize {
    let sums = if has_sums::<B, D>() { 8 * 4 } else { 0 };
    T * (256 + 256 / B::SUB * 4 + sums + 4 + if B::HAS_MIN { 4 } else { 0 })
}

/// Whether a packed superblock holds factors of the activations' sums.
pub(super) const fn has_sums<B: Decode256, D: Dot>() -> bool {
    B::HAS_MIN || B::OFFSET != 0 || (B::WIDE && D::VNNI)
}

/// Packs block `b` of the rows to `to`.
#[inline(always)]
pub(super) unsafe fn block32<B: Decode32, D: Dot, const T: usize>(rows: &[&[B]; T], b: usize, to: *mut u8) {
    for h in 0..T / 8 {
        let mut blocks = [rows[0].get_unchecked(b); 8];
        let mut codes = [_mm256_setzero_si256(); 8];
        for j in 0..8 {
            blocks[j] = rows[8 * h + j].get_unchecked(b);
            codes[j] = unsigned_for::<D>(blocks[j].unpack(), B::WIDE);
        }
        let to = to.add(32 * h);
        store_lines::<T>(transpose8(codes), to);
        _mm256_storeu_ps(to.add(32 * T).cast(), B::scales(blocks));
        if B::HAS_MIN {
            _mm256_storeu_ps(to.add(36 * T).cast(), B::mins(blocks));
        }
    }
}

/// Packs superblock `b` of the rows to `to`.
#[inline(always)]
pub(super) unsafe fn block256<B: Decode256, D: Dot, const T: usize>(rows: &[&[B]; T], b: usize, to: *mut u8) {
    for h in 0..T / 8 {
        let mut blocks = [rows[0].get_unchecked(b); 8];
        for j in 0..8 {
            blocks[j] = rows[8 * h + j].get_unchecked(b);
        }
        let to = to.add(32 * h);
        chunk::<B, D, T, 0>(blocks, to);
        chunk::<B, D, T, 1>(blocks, to);
        chunk::<B, D, T, 2>(blocks, to);
        chunk::<B, D, T, 3>(blocks, to);
        chunk::<B, D, T, 4>(blocks, to);
        chunk::<B, D, T, 5>(blocks, to);
        chunk::<B, D, T, 6>(blocks, to);
        chunk::<B, D, T, 7>(blocks, to);
        let to = groups::<B, D, T>(blocks, to.add(256 * T));
        _mm256_storeu_ps(to.cast(), B::scales(blocks));
        if B::HAS_MIN {
            _mm256_storeu_ps(to.add(4 * T).cast(), B::neg_min_scales(blocks));
        }
    }
}

/// Packs columns `32 C..32 C + 32` of eight rows.
#[inline(always)]
unsafe fn chunk<B: Decode256, D: Dot, const T: usize, const C: usize>(blocks: [&B; 8], to: *mut u8) {
    let mut codes = [_mm256_setzero_si256(); 8];
    for j in 0..8 {
        codes[j] = unsigned_for::<D>(blocks[j].unpack::<C>(), B::WIDE);
    }
    store_lines::<T>(transpose8(codes), to.add(32 * T * C));
}

/// Packs the integer scales and the factors of the activations' sums; returns where they end.
#[inline(always)]
unsafe fn groups<B: Decode256, D: Dot, const T: usize>(blocks: [&B; 8], to: *mut u8) -> *mut u8 {
    let mut scales = [_mm256_setzero_si256(); 8];
    let mut sums = [_mm256_setzero_si256(); 8];
    let offset = if B::WIDE && D::VNNI { 128 } else { B::OFFSET };
    for j in 0..8 {
        let (s, m) = blocks[j].group_vectors();
        scales[j] = s;
        sums[j] = if B::HAS_MIN { m } else { _mm256_mullo_epi16(s, _mm256_set1_epi16(-offset as i16)) };
    }
    // Each lane now holds the pair of groups 2 i and 2 i + 1 of one row.
    let pairs = transpose8(scales);
    let mut to = to;
    for pair in pairs {
        let low = _mm256_slli_epi32::<16>(pair);
        if D::VNNI {
            _mm256_storeu_si256(to.cast(), _mm256_srai_epi32::<16>(low));
        } else {
            _mm256_storeu_si256(to.cast(), _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(low), low));
        }
        to = to.add(4 * T);
        if B::SUB == 16 {
            let high = _mm256_srai_epi32::<16>(pair);
            let twice = _mm256_blend_epi16::<0xaa>(high, pair);
            _mm256_storeu_si256(to.cast(), if D::VNNI { high } else { twice });
            to = to.add(4 * T);
        }
    }
    if has_sums::<B, D>() {
        store_lines::<T>(transpose8(sums), to);
        to = to.add(8 * 4 * T);
    }
    to
}

/// Stores eight vectors, one for each group of lanes of a `T`-row line.
#[inline(always)]
unsafe fn store_lines<const T: usize>(v: [__m256i; 8], to: *mut u8) {
    for (g, v) in v.into_iter().enumerate() {
        _mm256_storeu_si256(to.add(4 * T * g).cast(), v);
    }
}

/// Signed codes with the sign bit flipped where the dot product needs unsigned ones.
#[inline(always)]
unsafe fn unsigned_for<D: Dot>(codes: __m256i, wide: bool) -> __m256i {
    if wide && D::VNNI { _mm256_xor_si256(codes, _mm256_set1_epi8(-128)) } else { codes }
}
