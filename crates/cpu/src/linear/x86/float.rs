//! Products in 32-bit floats with the 16 partial sums of `linear::float` in vector lanes.

use std::arch::x86_64::*;
use std::ops::Range;

use lapidary_gguf::GgmlType;

use crate::linear::Scratch;
use crate::linear::float::{LANES, decode};
use crate::linear::job::Job;

/// Weight rows that are held decoded while all activation rows pass.
const DECODED_ROWS: usize = 16;

/// With at most this many activation rows float weights are converted on the fly.
const DIRECT_ROWS: usize = 8;

/// Sixteen partial sums.
trait Lanes: Copy {
    unsafe fn zero() -> Self;
    unsafe fn f32(from: *const f32) -> Self;
    unsafe fn f16(from: *const u16) -> Self;
    unsafe fn bf16(from: *const u16) -> Self;
    unsafe fn multiply_add(self, a: Self, b: Self) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// The sum of the lanes, folded in halves.
    unsafe fn sum(self) -> f32;
}

/// Two AVX2 vectors.
#[derive(Clone, Copy)]
struct Two(__m256, __m256);

/// One AVX-512 vector.
#[derive(Clone, Copy)]
struct One(__m512);

/// Folds eight sums.
#[inline(always)]
unsafe fn fold8(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
}

impl Lanes for Two {
    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(_mm256_setzero_ps(), _mm256_setzero_ps())
    }

    #[inline(always)]
    unsafe fn f32(from: *const f32) -> Self {
        Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8)))
    }

    #[inline(always)]
    unsafe fn f16(from: *const u16) -> Self {
        let half = |at: usize| _mm256_cvtph_ps(_mm_loadu_si128(from.add(at).cast()));
        Self(half(0), half(8))
    }

    #[inline(always)]
    unsafe fn bf16(from: *const u16) -> Self {
        let half = |at: usize| {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(at).cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        };
        Self(half(0), half(8))
    }

    #[inline(always)]
    unsafe fn multiply_add(self, a: Self, b: Self) -> Self {
        Self(_mm256_fmadd_ps(a.0, b.0, self.0), _mm256_fmadd_ps(a.1, b.1, self.1))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        _mm256_storeu_ps(to, self.0);
        _mm256_storeu_ps(to.add(8), self.1);
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        fold8(_mm256_add_ps(self.0, self.1))
    }
}

impl Lanes for One {
    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(_mm512_setzero_ps())
    }

    #[inline(always)]
    unsafe fn f32(from: *const f32) -> Self {
        Self(_mm512_loadu_ps(from))
    }

    #[inline(always)]
    unsafe fn f16(from: *const u16) -> Self {
        Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast())))
    }

    #[inline(always)]
    unsafe fn bf16(from: *const u16) -> Self {
        let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
    }

    #[inline(always)]
    unsafe fn multiply_add(self, a: Self, b: Self) -> Self {
        Self(_mm512_fmadd_ps(a.0, b.0, self.0))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        _mm512_storeu_ps(to, self.0);
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let low = _mm512_castps512_ps256(self.0);
        fold8(_mm256_add_ps(low, _mm512_extractf32x8_ps::<1>(self.0)))
    }
}

/// How a weight type becomes lanes.
trait Weight: Copy {
    unsafe fn lanes<L: Lanes>(from: *const Self) -> L;
}

/// A half-precision number.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
struct F16(u16);

/// A bfloat16 number.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
struct Bf16(u16);

impl Weight for f32 {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(from: *const Self) -> L {
        L::f32(from)
    }
}

impl Weight for F16 {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(from: *const Self) -> L {
        L::f16(from.cast())
    }
}

impl Weight for Bf16 {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(from: *const Self) -> L {
        L::bf16(from.cast())
    }
}

/// Multiplies weight rows `rows` with the job's activation rows.
///
/// # Safety
/// The machine has AVX2, FMA and F16C; no other thread writes the same outputs.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::linear) unsafe fn rows_avx2(job: &Job, rows: Range<usize>, scratch: &mut Scratch) {
    multiply::<Two, 2, 3>(job, rows, scratch);
}

/// As [`rows_avx2`].
///
/// # Safety
/// The machine has AVX-512 F, BW, VL, DQ and VNNI besides; no other thread writes the same outputs.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(in crate::linear) unsafe fn rows_avx512(job: &Job, rows: Range<usize>, scratch: &mut Scratch) {
    multiply::<One, 4, 5>(job, rows, scratch);
}

/// `NW` by `NX` are the weight and activation rows of a register block.
#[inline(always)]
unsafe fn multiply<L: Lanes, const NW: usize, const NX: usize>(
    job: &Job,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    let few = job.map.len() <= DIRECT_ROWS;
    match job.weights.ty {
        GgmlType::F32 if few => direct::<L, f32, NW>(job, rows),
        GgmlType::F16 if few => direct::<L, F16, NW>(job, rows),
        GgmlType::BF16 if few => direct::<L, Bf16, NW>(job, rows),
        _ => decoded::<L, NW, NX>(job, rows, scratch),
    }
}

/// Few activation rows: weights are read once from memory, and from the cache for the groups after the first.
#[inline(always)]
unsafe fn direct<L: Lanes, W: Weight + Default, const NW: usize>(job: &Job, rows: Range<usize>) {
    const TILE: usize = 4;
    let n_x = job.map.len();
    for first in rows.clone().step_by(TILE) {
        let last = rows.end.min(first + TILE);
        let mut i = 0;
        while n_x - i >= 3 {
            direct_group::<L, W, NW, 3>(job, first..last, i);
            i += 3;
        }
        match n_x - i {
            2 => direct_group::<L, W, NW, 2>(job, first..last, i),
            1 => direct_group::<L, W, TILE, 1>(job, first..last, i),
            _ => {}
        }
    }
}

/// The results of weight rows `rows` with activation rows `i..i + NX` of the map.
#[inline(always)]
unsafe fn direct_group<L: Lanes, W: Weight + Default, const NW: usize, const NX: usize>(
    job: &Job,
    rows: Range<usize>,
    i: usize,
) {
    for first in rows.clone().step_by(NW) {
        let n = NW.min(rows.end - first);
        let mut w = [std::ptr::null::<W>(); NW];
        for (j, w) in w.iter_mut().enumerate() {
            *w = job.weights.row(first + j.min(n - 1)).as_ptr().cast();
        }
        block::<L, W, NW, NX>(job, w, (first, n), i);
    }
}

/// Many activation rows: some weight rows at a time are decoded to floats, then activation rows pass in groups.
#[inline(always)]
unsafe fn decoded<L: Lanes, const NW: usize, const NX: usize>(
    job: &Job,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    let cols = job.weights.cols;
    let padded = cols.next_multiple_of(LANES);
    for first in rows.clone().step_by(DECODED_ROWS) {
        let n = DECODED_ROWS.min(rows.end - first);
        let weights = scratch.floats.ensure::<f32>(n * padded);
        for j in 0..n {
            decode_row::<L>(job, first + j, &mut weights[j * padded..j * padded + cols]);
        }
        let row = |j: usize| weights[j.min(n - 1) * padded..].as_ptr();
        let mut i = 0;
        while i < job.map.len() {
            let n_x = if job.map.len() - i >= NX { NX } else { 1 };
            for j in (0..n).step_by(NW) {
                let mut w = [std::ptr::null(); NW];
                for (k, w) in w.iter_mut().enumerate() {
                    *w = row(j + k);
                }
                let n_w = NW.min(n - j);
                if n_x == NX {
                    block::<L, f32, NW, NX>(job, w, (first + j, n_w), i);
                } else {
                    block::<L, f32, NW, 1>(job, w, (first + j, n_w), i);
                }
            }
            i += n_x;
        }
    }
}

/// The results of `n` weight rows from `first` (at `w`) with activation rows `i..i + NX` of the map.
#[inline(always)]
unsafe fn block<L: Lanes, W: Weight + Default, const NW: usize, const NX: usize>(
    job: &Job,
    w: [*const W; NW],
    (first, n): (usize, usize),
    i: usize,
) {
    let mut x = [std::ptr::null(); NX];
    for (r, x) in x.iter_mut().enumerate() {
        *x = job.x_row(job.map.get(i + r).0).as_ptr();
    }
    let sums = dots::<L, W, NW, NX>(w, x, job.weights.cols);
    for r in 0..NX {
        let out = job.output(job.map.get(i + r).1, first, n);
        for j in 0..n {
            out[j] = sums[j][r];
        }
    }
}

/// Decodes weight row `row` to floats.
#[inline(always)]
unsafe fn decode_row<L: Lanes>(job: &Job, row: usize, out: &mut [f32]) {
    let from = job.weights.row(row).as_ptr();
    match job.weights.ty {
        GgmlType::F16 => widen::<L, F16>(from.cast(), out),
        GgmlType::BF16 => widen::<L, Bf16>(from.cast(), out),
        _ => decode(job, row, out),
    }
}

#[inline(always)]
unsafe fn widen<L: Lanes, W: Weight + Default>(from: *const W, out: &mut [f32]) {
    let whole = out.len() / LANES * LANES;
    for k in (0..whole).step_by(LANES) {
        W::lanes::<L>(from.add(k)).store(out.as_mut_ptr().add(k));
    }
    let rest = out.len() - whole;
    if rest > 0 {
        let mut lanes = [0.0; LANES];
        W::lanes::<L>(padded(from.add(whole), rest).as_ptr()).store(lanes.as_mut_ptr());
        out[whole..].copy_from_slice(&lanes[..rest]);
    }
}

/// The last `n` numbers of a row, followed by zeros.
#[inline(always)]
unsafe fn padded<T: Copy + Default>(from: *const T, n: usize) -> [T; LANES] {
    let mut lanes = [T::default(); LANES];
    for (i, lane) in lanes.iter_mut().enumerate().take(n) {
        *lane = from.add(i).read_unaligned();
    }
    lanes
}

/// Dot products of `NW` weight rows with `NX` activation rows of `cols` columns.
#[inline(always)]
unsafe fn dots<L: Lanes, W: Weight + Default, const NW: usize, const NX: usize>(
    w: [*const W; NW],
    x: [*const f32; NX],
    cols: usize,
) -> [[f32; NX]; NW] {
    let mut acc = [[L::zero(); NX]; NW];
    let whole = cols / LANES * LANES;
    let mut k = 0;
    while k < whole {
        accumulate(&mut acc, w.map(|w| w.add(k)), x.map(|x| x.add(k)));
        k += LANES;
    }
    if whole < cols {
        let w = w.map(|w| padded(w.add(whole), cols - whole));
        let x = x.map(|x| padded(x.add(whole), cols - whole));
        accumulate(&mut acc, w.each_ref().map(|w| w.as_ptr()), x.each_ref().map(|x| x.as_ptr()));
    }
    let mut sums = [[0.0; NX]; NW];
    for j in 0..NW {
        for r in 0..NX {
            sums[j][r] = acc[j][r].sum();
        }
    }
    sums
}

#[inline(always)]
unsafe fn accumulate<L: Lanes, W: Weight, const NW: usize, const NX: usize>(
    acc: &mut [[L; NX]; NW],
    w: [*const W; NW],
    x: [*const f32; NX],
) {
    let xs = x.map(|x| L::f32(x));
    for j in 0..NW {
        let w = W::lanes::<L>(w[j]);
        for r in 0..NX {
            acc[j][r] = acc[j][r].multiply_add(w, xs[r]);
        }
    }
}
