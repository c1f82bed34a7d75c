//! Sixteen lanes as two AVX2 vectors or one AVX-512 vector.
//!
//! The unsafe blocks of this file share one reason: a token of the type exists, so the processor has the features
//! of the intrinsics; pointers come from references to arrays as long as what is read or written.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::arch::x86_64::*;

use half::f16;

use super::{Chunk, Kernel, LANES, Simd};

/// The token of AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// The token of AVX-512 F and DQ, with those of AVX2.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// # Safety
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// # Safety
/// The processor has AVX2, FMA, F16C and AVX-512 F, VL, BW and DQ.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq")]
pub(super) unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// Two vectors: lanes 0-7 and 8-15.
#[derive(Clone, Copy)]
pub(super) struct Pair(__m256, __m256);

/// Defines operations that act on both halves alike.
macro_rules! halves {
    ($($name:ident($($arg:ident),+) = $body:expr;)+) => {$(
        #[inline(always)]
        fn $name(self, $($arg: Pair),+) -> Pair {
            let low = { $(let $arg = $arg.0;)+ unsafe { $body } };
            let high = { $(let $arg = $arg.1;)+ unsafe { $body } };
            Pair(low, high)
        }
    )+};
}

impl Simd for Avx2 {
    type F = Pair;

    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        let v = unsafe { _mm256_set1_ps(x) };
        Pair(v, v)
    }

    #[inline(always)]
    fn load(self, from: &Chunk) -> Pair {
        let from = from.as_ptr();
        unsafe { Pair(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> Pair {
        let from = from.as_ptr();
        unsafe {
            let low = _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
            Pair(low, _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())))
        }
    }

    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> Pair {
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
            Pair(low, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))))
        }
    }

    #[inline(always)]
    fn load_i6(self, low: &[u8; LANES], high: &[u8; LANES / 2]) -> [Pair; 2] {
        unsafe {
            let [a, b] = join_i6(low, high);
            let wide = |v: __m128i| {
                let low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v));
                Pair(low, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(v))))
            };
            [wide(a), wide(b)]
        }
    }

    #[inline(always)]
    fn nibble_levels(self, codes: &[u8; LANES], table: &Chunk) -> [Pair; 2] {
        unsafe {
            let [small, great] = [_mm256_loadu_ps(table.as_ptr()), _mm256_loadu_ps(table.as_ptr().add(8))];
            let bytes = _mm_loadu_si128(codes.as_ptr().cast());
            let a = _mm256_cvtepu8_epi32(bytes);
            let b = _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes));
            // A permutation looks at the low three bits, a blend at the sign: bit 3 moved there.
            let look_up = |code: __m256i, bit3: __m256i| {
                let (small, great) =
                    (_mm256_permutevar8x32_ps(small, code), _mm256_permutevar8x32_ps(great, code));
                _mm256_blendv_ps(small, great, _mm256_castsi256_ps(bit3))
            };
            let low = |v: __m256i| look_up(v, _mm256_slli_epi32::<28>(v));
            let high = |v: __m256i| look_up(_mm256_srli_epi32::<4>(v), _mm256_slli_epi32::<24>(v));
            [Pair(low(a), low(b)), Pair(high(a), high(b))]
        }
    }

    #[inline(always)]
    fn negate_where(self, bits: u16, v: Pair) -> Pair {
        unsafe {
            let [low, high] = lane_masks(bits);
            let sign = _mm256_set1_ps(-0.0);
            Pair(_mm256_xor_ps(v.0, _mm256_and_ps(low, sign)), _mm256_xor_ps(v.1, _mm256_and_ps(high, sign)))
        }
    }

    #[inline(always)]
    fn exchange<const D: usize>(self, v: Pair) -> Pair {
        unsafe {
            match D {
                8 => Pair(v.1, v.0),
                4 => Pair(_mm256_permute2f128_ps::<1>(v.0, v.0), _mm256_permute2f128_ps::<1>(v.1, v.1)),
                2 => Pair(_mm256_permute_ps::<0x4e>(v.0), _mm256_permute_ps::<0x4e>(v.1)),
                _ => Pair(_mm256_permute_ps::<0xb1>(v.0), _mm256_permute_ps::<0xb1>(v.1)),
            }
        }
    }

    #[inline(always)]
    fn store(self, v: Pair, to: &mut Chunk) {
        let to = to.as_mut_ptr();
        unsafe {
            _mm256_storeu_ps(to, v.0);
            _mm256_storeu_ps(to.add(8), v.1);
        }
    }

    halves! {
        add(a, b) = _mm256_add_ps(a, b);
        sub(a, b) = _mm256_sub_ps(a, b);
        mul(a, b) = _mm256_mul_ps(a, b);
        div(a, b) = _mm256_div_ps(a, b);
        mul_add(a, b, c) = _mm256_fmadd_ps(a, b, c);
        max(a, b) = _mm256_max_ps(a, b);
        min(a, b) = _mm256_min_ps(a, b);
        select_less(a, b, yes, no) = _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b));
        exp2_of_low_bits(v) = {
            let shifted = _mm256_slli_epi32::<23>(_mm256_castps_si256(v));
            _mm256_castsi256_ps(_mm256_add_epi32(shifted, _mm256_set1_epi32(0x3f80_0000)))
        };
        copy_sign(a, sign) = {
            let bit = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(bit, a), _mm256_and_ps(bit, sign))
        };
        abs(a) = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
    }

    #[inline(always)]
    fn sum(self, v: Pair) -> f32 {
        unsafe { fold8(_mm256_add_ps(v.0, v.1)) }
    }

    #[inline(always)]
    fn max_lane(self, v: Pair) -> f32 {
        unsafe { max8(_mm256_max_ps(v.0, v.1)) }
    }

    #[inline(always)]
    fn sum4(self, v: [Pair; 4]) -> [f32; 4] {
        unsafe {
            let [a, b] = [fold_pairs(v[0], v[1]), fold_pairs(v[2], v[3])];
            let low = _mm256_shuffle_ps::<0x44>(a, b);
            let halves = _mm256_add_ps(low, _mm256_shuffle_ps::<0xee>(a, b));
            let even = _mm256_shuffle_ps::<0x88>(halves, halves);
            let sums = _mm256_add_ps(even, _mm256_shuffle_ps::<0xdd>(halves, halves));
            // Lanes 0 and 1 of the halves: sums 0, 2 and 1, 3.
            let sums = _mm_unpacklo_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
            std::mem::transmute::<__m128, [f32; 4]>(sums)
        }
    }

    #[inline(always)]
    fn sum4x4(self, v: [[Pair; 4]; 4]) -> [[f32; 4]; 4] {
        [self.sum4(v[0]), self.sum4(v[1]), self.sum4(v[2]), self.sum4(v[3])]
    }
}

/// The two times sixteen integers of [`Simd::load_i6`], a byte each.
#[inline(always)]
unsafe fn join_i6(low: &[u8; LANES], high: &[u8; LANES / 2]) -> [__m128i; 2] {
    unsafe {
        let low = _mm_loadu_si128(low.as_ptr().cast());
        let high = _mm_loadl_epi64(high.as_ptr().cast());
        // Shifts act on 16 bits: what crosses a byte is masked off. First half: bits 0-1, 2-3 moved to 4-5.
        let first = _mm_unpacklo_epi64(_mm_slli_epi16::<4>(high), _mm_slli_epi16::<2>(high));
        let second = _mm_unpacklo_epi64(high, _mm_srli_epi16::<2>(high));
        let (nibble, top) = (_mm_set1_epi8(0x0f), _mm_set1_epi8(0x30));
        let join = |low: __m128i, high: __m128i| {
            let code = _mm_or_si128(_mm_and_si128(low, nibble), _mm_and_si128(high, top));
            _mm_sub_epi8(code, _mm_set1_epi8(32))
        };
        [join(low, first), join(_mm_srli_epi16::<4>(low), second)]
    }
}

/// All bits of the lanes whose bit is set.
#[inline(always)]
unsafe fn lane_masks(bits: u16) -> [__m256; 2] {
    unsafe {
        let bits = _mm256_set1_epi32(i32::from(bits));
        let low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let high = _mm256_slli_epi32::<8>(low);
        let mask =
            |lane: __m256i| _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(bits, lane), lane));
        [mask(low), mask(high)]
    }
}

/// Four lanes of partial sums of `a` in the low half, of `b` in the high one.
#[inline(always)]
unsafe fn fold_pairs(a: Pair, b: Pair) -> __m256 {
    unsafe {
        let (a, b) = (_mm256_add_ps(a.0, a.1), _mm256_add_ps(b.0, b.1));
        let low = _mm256_permute2f128_ps::<0x20>(a, b);
        _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(a, b))
    }
}

#[inline(always)]
unsafe fn fold8(v: __m256) -> f32 {
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

#[inline(always)]
unsafe fn max8(v: __m256) -> f32 {
    unsafe {
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

/// Defines operations of one vector.
macro_rules! whole {
    ($($name:ident($($arg:ident),+) = $body:expr;)+) => {$(
        #[inline(always)]
        fn $name(self, $($arg: __m512),+) -> __m512 {
            unsafe { $body }
        }
    )+};
}

impl Simd for Avx512 {
    type F = __m512;

    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, from: &Chunk) -> __m512 {
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn load_i6(self, low: &[u8; LANES], high: &[u8; LANES / 2]) -> [__m512; 2] {
        unsafe {
            let [a, b] = join_i6(low, high);
            let wide = |v: __m128i| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v));
            [wide(a), wide(b)]
        }
    }

    #[inline(always)]
    fn nibble_levels(self, codes: &[u8; LANES], table: &Chunk) -> [__m512; 2] {
        unsafe {
            let table = _mm512_loadu_ps(table.as_ptr());
            // A permutation looks at the low four bits.
            let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.as_ptr().cast()));
            let low = _mm512_permutexvar_ps(codes, table);
            [low, _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(codes), table)]
        }
    }

    #[inline(always)]
    fn negate_where(self, bits: u16, v: __m512) -> __m512 {
        unsafe { _mm512_mask_xor_ps(v, bits, v, _mm512_set1_ps(-0.0)) }
    }

    #[inline(always)]
    fn exchange<const D: usize>(self, v: __m512) -> __m512 {
        unsafe {
            match D {
                8 => _mm512_shuffle_f32x4::<0x4e>(v, v),
                4 => _mm512_shuffle_f32x4::<0xb1>(v, v),
                2 => _mm512_permute_ps::<0x4e>(v),
                _ => _mm512_permute_ps::<0xb1>(v),
            }
        }
    }

    #[inline(always)]
    fn store(self, v: __m512, to: &mut Chunk) {
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
    }

    whole! {
        add(a, b) = _mm512_add_ps(a, b);
        sub(a, b) = _mm512_sub_ps(a, b);
        mul(a, b) = _mm512_mul_ps(a, b);
        div(a, b) = _mm512_div_ps(a, b);
        mul_add(a, b, c) = _mm512_fmadd_ps(a, b, c);
        max(a, b) = _mm512_max_ps(a, b);
        min(a, b) = _mm512_min_ps(a, b);
        select_less(a, b, yes, no) = _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes);
        exp2_of_low_bits(v) = {
            let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(v));
            _mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(0x3f80_0000)))
        };
        copy_sign(a, sign) = {
            let bit = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(bit, a), _mm512_and_ps(bit, sign))
        };
        abs(a) = _mm512_andnot_ps(_mm512_set1_ps(-0.0), a);
    }

    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        unsafe { fold8(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v))) }
    }

    #[inline(always)]
    fn max_lane(self, v: __m512) -> f32 {
        unsafe { max8(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v))) }
    }

    #[inline(always)]
    fn sum4(self, v: [__m512; 4]) -> [f32; 4] {
        unsafe {
            // Quarters of four lanes: one of each vector.
            let quarters = fold_quarters(fold_halves(v[0], v[1]), fold_halves(v[2], v[3]));
            let pairs = _mm512_add_ps(quarters, _mm512_shuffle_ps::<0xee>(quarters, quarters));
            let sums = _mm512_add_ps(pairs, _mm512_shuffle_ps::<0x55>(pairs, pairs));
            // Lane 0 of each quarter.
            let first = _mm512_castps512_ps256(_mm512_permutexvar_ps(
                _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
                sums,
            ));
            std::mem::transmute::<__m128, [f32; 4]>(_mm256_castps256_ps128(first))
        }
    }

    #[inline(always)]
    fn sum4x4(self, v: [[__m512; 4]; 4]) -> [[f32; 4]; 4] {
        unsafe {
            // After two folds, quarter `i` of `q[j]` belongs to `v[i][j]`.
            let q0 = fold_quarters(fold_halves(v[0][0], v[1][0]), fold_halves(v[2][0], v[3][0]));
            let q1 = fold_quarters(fold_halves(v[0][1], v[1][1]), fold_halves(v[2][1], v[3][1]));
            let q2 = fold_quarters(fold_halves(v[0][2], v[1][2]), fold_halves(v[2][2], v[3][2]));
            let q3 = fold_quarters(fold_halves(v[0][3], v[1][3]), fold_halves(v[2][3], v[3][3]));
            let p01 = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(q0, q1), _mm512_shuffle_ps::<0xee>(q0, q1));
            let p23 = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(q2, q3), _mm512_shuffle_ps::<0xee>(q2, q3));
            let even = _mm512_shuffle_ps::<0x88>(p01, p23);
            let sums = _mm512_add_ps(even, _mm512_shuffle_ps::<0xdd>(p01, p23));
            std::mem::transmute::<__m512, [[f32; 4]; 4]>(sums)
        }
    }
}

/// Lanes `i` plus `i + 8` of `a` in the low half, of `b` in the high one.
#[inline(always)]
unsafe fn fold_halves(a: __m512, b: __m512) -> __m512 {
    unsafe {
        let low = _mm512_shuffle_f32x4::<0x44>(a, b);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0xee>(a, b))
    }
}

/// The same one level down: the four halves of `a` and `b` become four quarters.
#[inline(always)]
unsafe fn fold_quarters(a: __m512, b: __m512) -> __m512 {
    unsafe {
        let even = _mm512_shuffle_f32x4::<0x88>(a, b);
        _mm512_add_ps(even, _mm512_shuffle_f32x4::<0xdd>(a, b))
    }
}
