//! Register-blocked kernels for AVX-512 VNNI: 32 weight rows in two vectors, up to six activation rows.

use std::arch::x86_64::*;

use super::decode32::Decode32;
use super::decode256::Decode256;
use super::gemm::{Micro, TILE_VNNI, X32, X256};
use super::pack;
use super::simd::Vnni;

pub(super) struct MicroVnni;

const T: usize = TILE_VNNI;

/// Vectors of a tile.
const V: usize = T / 16;

#[inline(always)]
unsafe fn load<X>(from: *const X) -> __m512i {
    _mm512_loadu_si512(from.cast())
}

#[inline(always)]
unsafe fn load_ps(from: *const u8, v: usize) -> __m512 {
    _mm512_loadu_ps(from.add(64 * v).cast())
}

/// The 4 bytes at `from` in every lane.
#[inline(always)]
unsafe fn broadcast4<X>(from: *const X) -> __m512i {
    _mm512_set1_epi32(from.cast::<i32>().read_unaligned())
}

/// Adds `n` groups of four columns to `sums`.
#[inline(always)]
unsafe fn products<const R: usize>(
    sums: &mut [[__m512i; V]; R],
    n: usize,
    packed: *const u8,
    x: [*const i8; R],
) {
    for g in 0..n {
        let mut w = [_mm512_setzero_si512(); V];
        for v in 0..V {
            w[v] = load(packed.add(4 * T * g + 64 * v));
        }
        for r in 0..R {
            let x = broadcast4(x[r].add(4 * g));
            for v in 0..V {
                sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], w[v], x);
            }
        }
    }
}

impl Micro<T> for MicroVnni {
    const GROUP: usize = 6;

    #[inline(always)]
    unsafe fn block32<B: Decode32, const R: usize>(
        packed: *const u8,
        n: usize,
        x: [X32; R],
        acc: [*mut f32; R],
    ) {
        let offset = const { if B::WIDE { 128 } else { B::OFFSET } };
        let mut results = [[_mm512_setzero_ps(); V]; R];
        for r in 0..R {
            for v in 0..V {
                results[r][v] = load_ps(acc[r].cast(), v);
            }
        }
        for b in 0..n {
            let packed = packed.add(b * pack::bytes32::<B, T>());
            let mut sums = [[_mm512_setzero_si512(); V]; R];
            if offset != 0 {
                for r in 0..R {
                    let bits = _mm512_set1_epi32(offset.trailing_zeros() as i32);
                    sums[r] = [_mm512_sllv_epi32(broadcast4(x[r].neg_sums.add(b)), bits); V];
                }
            }
            products(&mut sums, 8, packed, x.map(|x| x.codes.add(32 * b)));
            for v in 0..V {
                let scale = load_ps(packed.add(32 * T), v);
                for r in 0..R {
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(*x[r].scales.add(b)));
                    results[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][v]), scale, results[r][v]);
                }
                if B::HAS_MIN {
                    let min = load_ps(packed.add(36 * T), v);
                    for r in 0..R {
                        let sum = _mm512_set1_ps(*x[r].scaled_sums.add(b));
                        results[r][v] = _mm512_fmadd_ps(min, sum, results[r][v]);
                    }
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                _mm512_storeu_ps(acc[r].add(16 * v), results[r][v]);
            }
        }
    }

    #[inline(always)]
    unsafe fn block256<B: Decode256, const R: usize>(
        packed: *const u8,
        n: usize,
        x: [X256; R],
        acc: [*mut f32; R],
    ) {
        for b in 0..n {
            let packed = packed.add(b * pack::bytes256::<B, Vnni, T>());
            let scales = packed.add(256 * T);
            let mut sums = [[_mm512_setzero_si512(); V]; R];
            for s in 0..256 / B::SUB {
                let mut dots = [[_mm512_setzero_si512(); V]; R];
                let codes = x.map(|x| x.codes.add(256 * b + s * B::SUB));
                products(&mut dots, B::SUB / 4, packed.add(T * B::SUB * s), codes);
                let shifts = x.map(|x| _mm_cvtsi32_si128(i32::from(*x.shifts.add(8 * b + s * B::SUB / 32))));
                for v in 0..V {
                    let scale = load(scales.add(4 * T * s + 64 * v));
                    for r in 0..R {
                        let dots = _mm512_sll_epi32(dots[r][v], shifts[r]);
                        sums[r][v] = _mm512_add_epi32(sums[r][v], _mm512_mullo_epi32(dots, scale));
                    }
                }
            }
            let mut rest = scales.add(256 / B::SUB * 4 * T);
            let mut mins = [[_mm512_setzero_si512(); V]; R];
            if pack::has_sums::<B, Vnni>() {
                for i in 0..8 {
                    for r in 0..R {
                        let pair = broadcast4(x[r].sums.add(16 * b + 2 * i));
                        for v in 0..V {
                            let factors = load(rest.add(4 * T * i + 64 * v));
                            let target = if B::HAS_MIN { &mut mins[r][v] } else { &mut sums[r][v] };
                            *target = _mm512_dpwssd_epi32(*target, factors, pair);
                        }
                    }
                }
                rest = rest.add(8 * 4 * T);
            }
            for r in 0..R {
                let x_scale = _mm512_set1_ps(*x[r].scales.add(b));
                for v in 0..V {
                    let to = acc[r].add(16 * v);
                    let scale = _mm512_mul_ps(load_ps(rest, v), x_scale);
                    let mut result =
                        _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][v]), scale, _mm512_loadu_ps(to));
                    if B::HAS_MIN {
                        let scale = _mm512_mul_ps(load_ps(rest.add(4 * T), v), x_scale);
                        result = _mm512_fmadd_ps(_mm512_cvtepi32_ps(mins[r][v]), scale, result);
                    }
                    _mm512_storeu_ps(to, result);
                }
            }
        }
    }
}
