//! Register-blocked kernels for AVX2: sixteen weight rows in the lanes of two vectors, up to three activation rows.
//!
//! Six sums of pairs in 16 bits, two vectors of codes, one of activations and one product are in registers at a time: five
//! loads serve six multiplications. The 32-bit sums are touched once in 32 columns and may live on the stack.
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

/// Vectors that hold a number of each weight row.
const H: usize = T / 8;

/// A vector of numbers of each weight row for each of `R` activation rows.
type Lanes<V, const R: usize> = [[V; H]; R];

/// Sums of `n` groups of four columns of the weight rows, as pairs in 16 bits.
#[inline(always)]
unsafe fn products<const R: usize>(
    wide: bool,
    n: usize,
    packed: *const u8,
    x: [*const i8; R],
) -> Lanes<__m256i, R> {
    let mut sums = [[_mm256_setzero_si256(); H]; R];
    for g in 0..n {
        let w: [__m256i; H] = std::array::from_fn(|h| load(packed.add(4 * T * g + 32 * h)));
        for r in 0..R {
            let x = broadcast4(x[r].add(4 * g));
            for h in 0..H {
                let products = if wide {
                    _mm256_maddubs_epi16(_mm256_abs_epi8(w[h]), _mm256_sign_epi8(x, w[h]))
                } else {
                    _mm256_maddubs_epi16(w[h], x)
                };
                sums[r][h] = if g == 0 { products } else { _mm256_add_epi16(sums[r][h], products) };
            }
        }
    }
    sums
}

/// The results so far.
#[inline(always)]
unsafe fn load_results<const R: usize>(from: [*mut f32; R]) -> Lanes<__m256, R> {
    from.map(|from| std::array::from_fn(|h| _mm256_loadu_ps(from.add(8 * h))))
}

#[inline(always)]
unsafe fn store_results<const R: usize>(results: Lanes<__m256, R>, to: [*mut f32; R]) {
    for r in 0..R {
        for h in 0..H {
            _mm256_storeu_ps(to[r].add(8 * h), results[r][h]);
        }
    }
}

impl Micro<T> for MicroAvx2 {
    const GROUP: usize = 3;

    #[inline(always)]
    unsafe fn block32<B: Decode32, const R: usize>(
        packed: *const u8,
        n: usize,
        x: [X32; R],
        acc: [*mut f32; R],
    ) {
        let run = const { run(B::WIDE, B::MAX_CODE) };
        let one = _mm256_set1_epi16(1);
        let mut results = load_results(acc);
        for b in 0..n {
            let packed = packed.add(b * pack::bytes32::<B, T>());
            let mut sums = [[_mm256_setzero_si256(); H]; R];
            if B::OFFSET != 0 {
                for r in 0..R {
                    let bits = const { if B::OFFSET == 0 { 0 } else { B::OFFSET.ilog2() as i32 } };
                    let neg = broadcast4(x[r].neg_sums.add(b));
                    sums[r] = [_mm256_sllv_epi32(neg, _mm256_set1_epi32(bits)); H];
                }
            }
            for g in (0..8).step_by(run) {
                let p = products(B::WIDE, run, packed.add(4 * T * g), x.map(|x| x.codes.add(32 * b + 4 * g)));
                for r in 0..R {
                    for h in 0..H {
                        sums[r][h] = _mm256_add_epi32(sums[r][h], _mm256_madd_epi16(p[r][h], one));
                    }
                }
            }
            for h in 0..H {
                let scale = _mm256_loadu_ps(packed.add(32 * T + 32 * h).cast());
                for r in 0..R {
                    let scale = _mm256_mul_ps(scale, _mm256_set1_ps(*x[r].scales.add(b)));
                    results[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r][h]), scale, results[r][h]);
                }
                if B::HAS_MIN {
                    let min = _mm256_loadu_ps(packed.add(36 * T + 32 * h).cast());
                    for r in 0..R {
                        let sum = _mm256_set1_ps(*x[r].scaled_sums.add(b));
                        results[r][h] = _mm256_fmadd_ps(min, sum, results[r][h]);
                    }
                }
            }
        }
        store_results(results, acc);
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
        let mut results = load_results(acc);
        for b in 0..n {
            let packed = packed.add(b * pack::bytes256::<B, Avx2, T>());
            let scales = packed.add(256 * T);
            let mut sums = [[_mm256_setzero_si256(); H]; R];
            for c in 0..8 {
                let mut group = [[_mm256_setzero_si256(); H]; R];
                for g in (8 * c..8 * c + 8).step_by(run) {
                    let codes = x.map(|x| x.codes.add(256 * b + 4 * g));
                    let p = products(B::WIDE, run, packed.add(4 * T * g), codes);
                    for h in 0..H {
                        let scale = load(scales.add(4 * T * (4 * g / B::SUB) + 32 * h));
                        for r in 0..R {
                            group[r][h] = _mm256_add_epi32(group[r][h], _mm256_madd_epi16(p[r][h], scale));
                        }
                    }
                }
                for r in 0..R {
                    let shift = _mm_cvtsi32_si128(i32::from(*x[r].shifts.add(8 * b + c)));
                    for h in 0..H {
                        sums[r][h] = _mm256_add_epi32(sums[r][h], _mm256_sll_epi32(group[r][h], shift));
                    }
                }
            }
            let mut rest = scales.add(256 / B::SUB * 4 * T);
            let mut mins = [[_mm256_setzero_si256(); H]; R];
            if pack::has_sums::<B, Avx2>() {
                for i in 0..8 {
                    for r in 0..R {
                        let pair = broadcast4(x[r].sums.add(16 * b + 2 * i));
                        for h in 0..H {
                            let factors = load(rest.add(4 * T * i + 32 * h));
                            let target = if B::HAS_MIN { &mut mins[r][h] } else { &mut sums[r][h] };
                            *target = _mm256_add_epi32(*target, _mm256_madd_epi16(factors, pair));
                        }
                    }
                }
                rest = rest.add(8 * 4 * T);
            }
            for h in 0..H {
                let scale = _mm256_loadu_ps(rest.add(32 * h).cast());
                for r in 0..R {
                    let x_scale = _mm256_set1_ps(*x[r].scales.add(b));
                    let scale = _mm256_mul_ps(scale, x_scale);
                    results[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r][h]), scale, results[r][h]);
                    if B::HAS_MIN {
                        let min = _mm256_loadu_ps(rest.add(4 * T + 32 * h).cast());
                        let scale = _mm256_mul_ps(min, x_scale);
                        results[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(mins[r][h]), scale, results[r][h]);
                    }
                }
            }
        }
        store_results(results, acc);
    }
}
