//! Small vector helpers shared by the kernels.

use std::arch::x86_64::*;

use lapidary_gguf::block::Half;

/// Integer dot products of the two instruction sets.
pub(super) trait Dot {
    /// Whether one instruction multiplies bytes and accumulates 32-bit sums.
    const VNNI: bool;
    /// Sums of four products of unsigned `a` and signed `b` in each 32-bit lane. Without VNNI pairs of products
    /// must fit in 16 bits.
    unsafe fn dot_u8(a: __m256i, b: __m256i) -> __m256i;
    /// `acc` plus the sums of two 16-bit products in each 32-bit lane.
    unsafe fn dot_i16(acc: __m256i, a: __m256i, b: __m256i) -> __m256i;
}

/// AVX2: multiply to 16 bits, then widen.
pub(super) struct Avx2;
/// AVX-512 VNNI on 256-bit vectors.
pub(super) struct Vnni;

impl Dot for Avx2 {
    const VNNI: bool = false;

    #[inline(always)]
    unsafe fn dot_u8(a: __m256i, b: __m256i) -> __m256i {
        _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1))
    }

    #[inline(always)]
    unsafe fn dot_i16(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        _mm256_add_epi32(acc, _mm256_madd_epi16(a, b))
    }
}

impl Dot for Vnni {
    const VNNI: bool = true;

    #[inline(always)]
    unsafe fn dot_u8(a: __m256i, b: __m256i) -> __m256i {
        _mm256_dpbusd_epi32(_mm256_setzero_si256(), a, b)
    }

    #[inline(always)]
    unsafe fn dot_i16(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        _mm256_dpwssd_epi32(acc, a, b)
    }
}

/// 32 bytes from `from`, of any alignment.
#[inline(always)]
pub(super) unsafe fn load<T>(from: *const T) -> __m256i {
    _mm256_loadu_si256(from.cast())
}

/// 16 bytes in both halves.
#[inline(always)]
pub(super) unsafe fn load_twice(from: &[u8; 16]) -> __m256i {
    _mm256_broadcastsi128_si256(_mm_loadu_si128(from.as_ptr().cast()))
}

/// The 4 bytes at `from` in every lane.
#[inline(always)]
pub(super) unsafe fn broadcast4<T>(from: *const T) -> __m256i {
    _mm256_set1_epi32(from.cast::<i32>().read_unaligned())
}

/// Eight stored halves as floats.
#[inline(always)]
pub(super) unsafe fn widen8(halves: [Half; 8]) -> __m256 {
    let h = halves.map(i16::from_le_bytes);
    _mm256_cvtph_ps(_mm_setr_epi16(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]))
}

/// Lane `j` of the result is the sum of the eight lanes of `p[j]`.
#[inline(always)]
pub(super) unsafe fn sum_lanes(p: [__m256i; 8]) -> __m256i {
    let low = _mm256_hadd_epi32(_mm256_hadd_epi32(p[0], p[1]), _mm256_hadd_epi32(p[2], p[3]));
    let high = _mm256_hadd_epi32(_mm256_hadd_epi32(p[4], p[5]), _mm256_hadd_epi32(p[6], p[7]));
    join_halves(low, high)
}

/// As [`sum_lanes`] for 16-bit lanes, where sums of eight numbers fit in 16 bits.
#[inline(always)]
pub(super) unsafe fn sum_lanes16(p: [__m256i; 8]) -> __m256i {
    let one = _mm256_set1_epi16(1);
    let low = _mm256_hadd_epi16(_mm256_hadd_epi16(p[0], p[1]), _mm256_hadd_epi16(p[2], p[3]));
    let high = _mm256_hadd_epi16(_mm256_hadd_epi16(p[4], p[5]), _mm256_hadd_epi16(p[6], p[7]));
    join_halves(_mm256_madd_epi16(low, one), _mm256_madd_epi16(high, one))
}

/// Adds the halves of `low` into lanes 0-3 and those of `high` into lanes 4-7.
#[inline(always)]
unsafe fn join_halves(low: __m256i, high: __m256i) -> __m256i {
    let crossed = _mm256_permute2x128_si256::<0x21>(low, high);
    _mm256_add_epi32(_mm256_blend_epi32::<0xf0>(low, high), crossed)
}

/// Transposes an 8 by 8 matrix of 32-bit lanes.
#[inline(always)]
pub(super) unsafe fn transpose8(r: [__m256i; 8]) -> [__m256i; 8] {
    let mut a = r;
    for i in 0..4 {
        a[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    let mut b = a;
    for i in 0..2 {
        b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    let mut c = b;
    for i in 0..4 {
        c[i] = _mm256_permute2x128_si256::<0x20>(b[i], b[i + 4]);
        c[i + 4] = _mm256_permute2x128_si256::<0x31>(b[i], b[i + 4]);
    }
    c
}

/// Asks for the `len` bytes at `from` to be brought near; any address will do.
#[inline(always)]
pub(super) unsafe fn prefetch(from: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at).cast());
        at += 64;
    }
}
