//! One activation row against quantised weights, straight from the stored layout.
//!
//! Tiles of eight weight rows: each row's integer sums stay in a vector of partial sums until one tree of
//! additions brings the eight rows into the eight lanes of a vector, where one multiply-add serves them all.

use std::arch::x86_64::*;
use std::ops::Range;

use super::decode32::Decode32;
use super::decode256::Decode256;
use super::simd::{Avx2, Dot, Vnni, broadcast4, load, prefetch, sum_lanes, sum_lanes16};
use crate::linear::activations::{Row32, Row256};
use crate::linear::job::Job;

/// Weight rows of a tile.
const TILE: usize = 8;

/// Multiplies weight rows `rows` in blocks of 32 with each activation row on its own.
///
/// # Safety
/// The machine has AVX2, FMA and F16C; no other thread writes the same outputs.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::linear) unsafe fn block32_avx2<B: Decode32>(job: &Job, rows: Range<usize>) {
    block32::<B, Avx2>(job, rows);
}

/// As [`block32_avx2`].
///
/// # Safety
/// The machine has AVX-512 F, BW, VL, DQ and VNNI besides; no other thread writes the same outputs.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(in crate::linear) unsafe fn block32_vnni<B: Decode32>(job: &Job, rows: Range<usize>) {
    block32::<B, Vnni>(job, rows);
}

/// Multiplies weight rows `rows` in superblocks with each activation row on its own.
///
/// # Safety
/// The machine has AVX2, FMA and F16C; no other thread writes the same outputs.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::linear) unsafe fn block256_avx2<B: Decode256>(job: &Job, rows: Range<usize>) {
    block256::<B, Avx2>(job, rows);
}

/// As [`block256_avx2`].
///
/// # Safety
/// The machine has AVX-512 F, BW, VL, DQ and VNNI besides; no other thread writes the same outputs.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(in crate::linear) unsafe fn block256_vnni<B: Decode256>(job: &Job, rows: Range<usize>) {
    block256::<B, Vnni>(job, rows);
}

#[inline(always)]
unsafe fn block32<B: Decode32, D: Dot>(job: &Job, rows: Range<usize>) {
    for (x_row, out_row) in job.map.iter() {
        let x = job.activations.row32(x_row);
        for first in rows.clone().step_by(TILE) {
            let n = TILE.min(rows.end - first);
            let sums = tile32::<B, D>(job.weights.tile(first, n), x);
            store(job, out_row, first, n, sums);
        }
    }
}

#[inline(always)]
unsafe fn block256<B: Decode256, D: Dot>(job: &Job, rows: Range<usize>) {
    for (x_row, out_row) in job.map.iter() {
        let x = job.activations.row256(x_row);
        for first in rows.clone().step_by(TILE) {
            let n = TILE.min(rows.end - first);
            let sums = tile256::<B, D>(job.weights.tile(first, n), x);
            store(job, out_row, first, n, sums);
        }
    }
}

/// Writes the first `n` lanes as the results of the weight rows from `first`.
#[inline(always)]
unsafe fn store(job: &Job, out_row: usize, first: usize, n: usize, sums: __m256) {
    let out = job.output(out_row, first, n);
    if n == TILE {
        _mm256_storeu_ps(out.as_mut_ptr(), sums);
    } else {
        let mut lanes = [0.0; TILE];
        _mm256_storeu_ps(lanes.as_mut_ptr(), sums);
        out.copy_from_slice(&lanes[..n]);
    }
}

/// Products of eight weight rows in blocks of 32 with `x`.
#[inline(always)]
unsafe fn tile32<B: Decode32, D: Dot>(rows: [&[B]; TILE], x: Row32) -> __m256 {
    let n_blocks = x.scales.len();
    let next_tile = rows[TILE - 1].as_ptr_range().end.cast::<u8>();
    let offset_bits = (if B::WIDE { 128 } else { B::OFFSET }).ilog2_or_zero();
    let mut acc = _mm256_setzero_ps();
    for b in 0..n_blocks {
        prefetch(next_tile.wrapping_add(b * TILE * size_of::<B>()), TILE * size_of::<B>());
        let blocks = rows.map(|row| row.get_unchecked(b));
        let xv = load(x.codes.as_ptr().add(32 * b));
        let mut p = [_mm256_setzero_si256(); TILE];
        let sums = if D::VNNI {
            for j in 0..TILE {
                let codes = blocks[j].unpack();
                let codes = if B::WIDE { _mm256_xor_si256(codes, _mm256_set1_epi8(-128)) } else { codes };
                p[j] = D::dot_u8(codes, xv);
            }
            sum_lanes(p)
        } else if B::WIDE {
            for j in 0..TILE {
                let codes = blocks[j].unpack();
                p[j] = D::dot_u8(_mm256_abs_epi8(codes), _mm256_sign_epi8(xv, codes));
            }
            sum_lanes(p)
        } else {
            // Eight products of at most 31 * 127 fit in 16 bits.
            const { assert!(B::WIDE || B::MAX_CODE * 127 * 8 <= i16::MAX as i32) };
            for j in 0..TILE {
                p[j] = _mm256_maddubs_epi16(blocks[j].unpack(), xv);
            }
            sum_lanes16(p)
        };
        let sums = if B::OFFSET != 0 || (B::WIDE && D::VNNI) {
            let neg = broadcast4(x.neg_sums.as_ptr().add(b));
            _mm256_add_epi32(sums, _mm256_sllv_epi32(neg, _mm256_set1_epi32(offset_bits)))
        } else {
            sums
        };
        let scale = _mm256_mul_ps(B::scales(blocks), _mm256_set1_ps(*x.scales.get_unchecked(b)));
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), scale, acc);
        if B::HAS_MIN {
            let sum = _mm256_set1_ps(*x.scaled_sums.get_unchecked(b));
            acc = _mm256_fmadd_ps(B::mins(blocks), sum, acc);
        }
    }
    acc
}

/// Products of eight weight rows in superblocks with `x`.
#[inline(always)]
unsafe fn tile256<B: Decode256, D: Dot>(rows: [&[B]; TILE], x: Row256) -> __m256 {
    let n_blocks = x.scales.len();
    let next_tile = rows[TILE - 1].as_ptr_range().end.cast::<u8>();
    let mut acc = _mm256_setzero_ps();
    for b in 0..n_blocks {
        let xv = x.codes.as_ptr().add(256 * b);
        let x_sums = load(x.sums.as_ptr().add(16 * b));
        let powers = powers_of_two(x.shifts.as_ptr().add(8 * b));
        let blocks = rows.map(|row| row.get_unchecked(b));
        let mut p = [_mm256_setzero_si256(); TILE];
        let mut m = [_mm256_setzero_si256(); TILE];
        for j in 0..TILE {
            prefetch(next_tile.wrapping_add((b * TILE + j) * size_of::<B>()), size_of::<B>());
            let (scales, mins) = blocks[j].group_vectors();
            p[j] = superblock::<B, D>(blocks[j], xv, _mm256_mullo_epi16(scales, powers));
            if B::OFFSET != 0 {
                let offset = _mm256_madd_epi16(scales, x_sums);
                let bits = _mm256_set1_epi32(B::OFFSET.ilog2_or_zero());
                p[j] = _mm256_sub_epi32(p[j], _mm256_sllv_epi32(offset, bits));
            }
            if B::HAS_MIN {
                m[j] = _mm256_madd_epi16(mins, x_sums);
            }
        }
        let x_scale = _mm256_set1_ps(*x.scales.get_unchecked(b));
        let scale = _mm256_mul_ps(B::scales(blocks), x_scale);
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum_lanes(p)), scale, acc);
        if B::HAS_MIN {
            let scale = _mm256_mul_ps(B::neg_min_scales(blocks), x_scale);
            acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum_lanes(m)), scale, acc);
        }
    }
    acc
}

/// Two to the power of each of eight shifts of 0 to 3, twice, in 16-bit lanes: a factor for each group of 16.
#[inline(always)]
unsafe fn powers_of_two(shifts: *const u8) -> __m256i {
    let powers = _mm_shuffle_epi8(_mm_cvtsi32_si128(0x0804_0201), _mm_loadl_epi64(shifts.cast()));
    _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(powers, powers))
}

/// Partial sums of the codes of one superblock times their group's factor in `scales` times `x`.
#[inline(always)]
unsafe fn superblock<B: Decode256, D: Dot>(block: &B, x: *const i8, scales: __m256i) -> __m256i {
    let first = _mm256_permute2x128_si256::<0x00>(scales, scales);
    let second = _mm256_permute2x128_si256::<0x11>(scales, scales);
    let mut acc = _mm256_setzero_si256();
    acc = chunk::<B, D, 0>(acc, block, x, first);
    acc = chunk::<B, D, 1>(acc, block, x, first);
    acc = chunk::<B, D, 2>(acc, block, x, first);
    acc = chunk::<B, D, 3>(acc, block, x, first);
    acc = chunk::<B, D, 4>(acc, block, x, second);
    acc = chunk::<B, D, 5>(acc, block, x, second);
    acc = chunk::<B, D, 6>(acc, block, x, second);
    chunk::<B, D, 7>(acc, block, x, second)
}

/// Adds the products of columns `32 C..32 C + 32`; both halves of `scales` hold groups `8 (C / 4)..` of 16.
#[inline(always)]
unsafe fn chunk<B: Decode256, D: Dot, const C: usize>(
    acc: __m256i,
    block: &B,
    x: *const i8,
    scales: __m256i,
) -> __m256i {
    const { assert!(B::WIDE || B::MAX_CODE * 127 * 2 <= i16::MAX as i32) };
    let x = load(x.add(32 * C));
    let codes = block.unpack::<C>();
    let products = if B::WIDE {
        _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
    } else {
        _mm256_maddubs_epi16(codes, x)
    };
    // The bytes of groups 2 C and 2 C + 1, one for each half of the chunk.
    let group = 0x0100_0100_0100_0100 + (C as i64 % 4) * 0x0404_0404_0404_0404;
    let upper = group + 0x0202_0202_0202_0202;
    let scale = _mm256_shuffle_epi8(scales, _mm256_setr_epi64x(group, group, upper, upper));
    D::dot_i16(acc, products, scale)
}

/// The logarithm of an offset as a shift count.
trait OffsetBits {
    fn ilog2_or_zero(self) -> i32;
}

impl OffsetBits for i32 {
    #[inline(always)]
    fn ilog2_or_zero(self) -> i32 {
        if self == 0 { 0 } else { self.ilog2() as i32 }
    }
}
