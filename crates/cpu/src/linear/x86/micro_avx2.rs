//! Register-blocked kernels for AVX2: eight weight rows in the lanes, up to four activation rows.
//!
//! Products of bytes are added up in 16 bits as long as the format's codes allow, and only then widened; for
//! superblocks the widening multiplication applies the integer scale as well.

use std::arch::x86_64::*;

use super::decode32::Decode32;
use super::decode256::Decode256;
use super::gemm::{Micro, TILE_AVX2, X32, X256};
use super::pack;
use super::simd::{Avx2, broadcast4, load};

pub(super) struct MicroAvx2;

const T: usize = TILE_AVX2;

/// How many products of pairs fit in 16 bits together.
const fn run(wide: bool, max_code: i32) -> usize {
    if wide {
        return 1;
    }
    let mut n = 8;
    while n as i32 * 2 * 127 * max_code > i16::MAX as i32 {
        n /= 2;
    }
    n
}

/// Sums of `N` groups of four columns of eight rows, as pairs in 16 bits.
#[inline(always)]
unsafe fn products<const R: usize>(
    wide: bool,
    n: usize,
    packed: *const u8,
    x: [*const i8; R],
) -> [__m256i; R] {
    let mut sums = [_mm256_setzero_si256(); R];
    for g in 0..n {
        let w = load(packed.add(4 * T * g));
        for r in 0..R {
            let x = broadcast4(x[r].add(4 * g));
            let products = if wide {
                _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
            } else {
                _mm256_maddubs_epi16(w, x)
            };
            sums[r] = if g == 0 { products } else { _mm256_add_epi16(sums[r], products) };
        }
    }
    sums
}

impl Micro<T> for MicroAvx2 {
    const GROUP: usize = 4;

    #[inline(always)]
    unsafe fn block32<B: Decode32, const R: usize>(
        packed: *const u8,
        n: usize,
        x: [X32; R],
        acc: [*mut f32; R],
    ) {
        let run = const { run(B::WIDE, B::MAX_CODE) };
        let one = _mm256_set1_epi16(1);
        let mut results = acc.map(|acc| _mm256_loadu_ps(acc));
        for b in 0..n {
            let packed = packed.add(b * pack::bytes32::<B, T>());
            let mut sums = [_mm256_setzero_si256(); R];
            if B::OFFSET != 0 {
                for r in 0..R {
                    let bits = const { if B::OFFSET == 0 { 0 } else { B::OFFSET.ilog2() as i32 } };
                    let neg = broadcast4(x[r].neg_sums.add(b));
                    sums[r] = _mm256_sllv_epi32(neg, _mm256_set1_epi32(bits));
                }
            }
            for g in (0..8).step_by(run) {
                let p = products(B::WIDE, run, packed.add(4 * T * g), x.map(|x| x.codes.add(32 * b + 4 * g)));
                for r in 0..R {
                    sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(p[r], one));
                }
            }
            let scale = _mm256_loadu_ps(packed.add(32 * T).cast());
            for r in 0..R {
                let scale = _mm256_mul_ps(scale, _mm256_set1_ps(*x[r].scales.add(b)));
                results[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r]), scale, results[r]);
            }
            if B::HAS_MIN {
                let min = _mm256_loadu_ps(packed.add(36 * T).cast());
                for r in 0..R {
                    let sum = _mm256_set1_ps(*x[r].scaled_sums.add(b));
                    results[r] = _mm256_fmadd_ps(min, sum, results[r]);
                }
            }
        }
        for r in 0..R {
            _mm256_storeu_ps(acc[r], results[r]);
        }
    }

    #[inline(always)]
    unsafe fn block256<B: Decode256, const R: usize>(
        packed: *const u8,
        n: usize,
        x: [X256; R],
        acc: [*mut f32; R],
    ) {
        let run = const {
            let run = run(B::WIDE, B::MAX_CODE);
            if run > B::SUB / 4 { B::SUB / 4 } else { run }
        };
        let mut results = acc.map(|acc| _mm256_loadu_ps(acc));
        for b in 0..n {
            let packed = packed.add(b * pack::bytes256::<B, Avx2, T>());
            let scales = packed.add(256 * T);
            let mut sums = [_mm256_setzero_si256(); R];
            for c in 0..8 {
                let mut group = [_mm256_setzero_si256(); R];
                for g in (8 * c..8 * c + 8).step_by(run) {
                    let scale = load(scales.add(4 * T * (4 * g / B::SUB)));
                    let codes = x.map(|x| x.codes.add(256 * b + 4 * g));
                    let p = products(B::WIDE, run, packed.add(4 * T * g), codes);
                    for r in 0..R {
                        group[r] = _mm256_add_epi32(group[r], _mm256_madd_epi16(p[r], scale));
                    }
                }
                for r in 0..R {
                    let shift = _mm_cvtsi32_si128(i32::from(*x[r].shifts.add(8 * b + c)));
                    sums[r] = _mm256_add_epi32(sums[r], _mm256_sll_epi32(group[r], shift));
                }
            }
            let mut rest = scales.add(256 / B::SUB * 4 * T);
            let mut mins = [_mm256_setzero_si256(); R];
            if pack::has_sums::<B, Avx2>() {
                for i in 0..8 {
                    let factors = load(rest.add(4 * T * i));
                    for r in 0..R {
                        let pair = broadcast4(x[r].sums.add(16 * b + 2 * i));
                        let target = if B::HAS_MIN { &mut mins[r] } else { &mut sums[r] };
                        *target = _mm256_add_epi32(*target, _mm256_madd_epi16(factors, pair));
                    }
                }
                rest = rest.add(8 * 4 * T);
            }
            let scale = _mm256_loadu_ps(rest.cast());
            for r in 0..R {
                let x_scale = _mm256_set1_ps(*x[r].scales.add(b));
                let scale = _mm256_mul_ps(scale, x_scale);
                results[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r]), scale, results[r]);
                if B::HAS_MIN {
                    let scale = _mm256_mul_ps(_mm256_loadu_ps(rest.add(4 * T).cast()), x_scale);
                    results[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(mins[r]), scale, results[r]);
                }
            }
        }
        for r in 0..R {
            _mm256_storeu_ps(acc[r], results[r]);
        }
    }
}
