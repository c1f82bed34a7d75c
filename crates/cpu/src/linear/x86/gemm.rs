//! Several activation rows against quantised weights.
//!
//! A tile of `T` weight rows is decoded once, a chunk of columns at a time so that it stays in the first-level
//! cache, and all activation rows pass over it in groups. Results wait in scratch between chunks; since a chunk is
//! whole blocks, the order of a result's additions is that of the columns.

use std::ops::Range;

use super::decode32::Decode32;
use super::decode256::Decode256;
use super::micro_avx2::MicroAvx2;
use super::micro_vnni::MicroVnni;
use super::pack;
use super::simd::{Avx2, Dot, Vnni, prefetch};
use crate::linear::Scratch;
use crate::linear::job::Job;

/// Runs `$body` for groups of `$r` consecutive rows from `$i` that together cover `0..$n`, greatest first.
macro_rules! for_groups {
    ($greatest:expr, $n:expr, |$i:ident, $r:ident| $body:block) => {{
        let mut $i = 0;
        if $greatest >= 6 {
            while $n - $i >= 6 {
                const $r: usize = 6;
                $body
                $i += $r;
            }
        }
        if $greatest >= 4 {
            while $n - $i >= 4 {
                const $r: usize = 4;
                $body
                $i += $r;
            }
        } else {
            // Four are better halved than a third one cut off.
            while $n - $i >= 3 && $n - $i != 4 {
                const $r: usize = 3;
                $body
                $i += $r;
            }
        }
        while $n - $i >= 2 {
            const $r: usize = 2;
            $body
            $i += $r;
        }
        if $n > $i {
            const $r: usize = 1;
            $body
        }
    }};
}

/// Weight rows of a tile with AVX2.
pub(in crate::linear) const TILE_AVX2: usize = 16;
/// Weight rows of a tile with AVX-512.
pub(in crate::linear) const TILE_VNNI: usize = 32;

/// Bytes of packed codes that fit in the first-level cache beside the activations.
const PACKED_BYTES: usize = 16 * 1024;

/// A block of 32 of one activation row.
#[derive(Clone, Copy)]
pub(super) struct X32 {
    pub(super) codes: *const i8,
    pub(super) scales: *const f32,
    pub(super) neg_sums: *const i32,
    pub(super) scaled_sums: *const f32,
}

/// A superblock of one activation row.
#[derive(Clone, Copy)]
pub(super) struct X256 {
    pub(super) codes: *const i8,
    pub(super) scales: *const f32,
    pub(super) shifts: *const u8,
    pub(super) sums: *const i16,
}

/// The register-blocked kernels of an instruction set, for tiles of `T` weight rows.
pub(super) trait Micro<const T: usize> {
    /// Activation rows of the largest group: 3, 4 or 6.
    const GROUP: usize;
    /// Adds the products of `n` packed blocks with each of `R` activation rows to the `T` results at `acc`.
    unsafe fn block32<B: Decode32, const R: usize>(
        packed: *const u8,
        n: usize,
        x: [X32; R],
        acc: [*mut f32; R],
    );
    /// As `block32`, for superblocks.
    unsafe fn block256<B: Decode256, const R: usize>(
        packed: *const u8,
        n: usize,
        x: [X256; R],
        acc: [*mut f32; R],
    );
}

/// Multiplies weight rows `rows` in blocks of 32 with the job's activation rows.
///
/// # Safety
/// The machine has AVX2, FMA and F16C; no other thread writes the same outputs.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::linear) unsafe fn block32_avx2<B: Decode32>(
    job: &Job,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    block32::<B, Avx2, MicroAvx2, TILE_AVX2>(job, rows, scratch);
}

/// As [`block32_avx2`].
///
/// # Safety
/// The machine has AVX-512 F, BW, VL, DQ and VNNI besides; no other thread writes the same outputs.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(in crate::linear) unsafe fn block32_vnni<B: Decode32>(
    job: &Job,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    block32::<B, Vnni, MicroVnni, TILE_VNNI>(job, rows, scratch);
}

/// Multiplies weight rows `rows` in superblocks with the job's activation rows.
///
/// # Safety
/// The machine has AVX2, FMA and F16C; no other thread writes the same outputs.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::linear) unsafe fn block256_avx2<B: Decode256>(
    job: &Job,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    block256::<B, Avx2, MicroAvx2, TILE_AVX2>(job, rows, scratch);
}

/// As [`block256_avx2`].
///
/// # Safety
/// The machine has AVX-512 F, BW, VL, DQ and VNNI besides; no other thread writes the same outputs.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(in crate::linear) unsafe fn block256_vnni<B: Decode256>(
    job: &Job,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    block256::<B, Vnni, MicroVnni, TILE_VNNI>(job, rows, scratch);
}

#[inline(always)]
unsafe fn block32<B: Decode32, D: Dot, M: Micro<T>, const T: usize>(
    job: &Job,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    let n_x = job.map.len();
    let n_blocks = job.weights.cols / 32;
    let block_bytes = pack::bytes32::<B, T>();
    let chunk = (PACKED_BYTES / (32 * T)).max(1);
    let packed = scratch.packed.ensure::<u8>(chunk * block_bytes).as_mut_ptr();
    let acc = scratch.acc.ensure::<f32>(n_x * T);
    for first in rows.clone().step_by(T) {
        let n = T.min(rows.end - first);
        let tile: [&[B]; T] = job.weights.tile(first, n);
        let next_tile = tile[T - 1].as_ptr_range().end.cast::<u8>();
        acc.fill(0.0);
        for begin in (0..n_blocks).step_by(chunk) {
            let len = chunk.min(n_blocks - begin);
            for b in 0..len {
                let next = next_tile.wrapping_add((begin + b) * T * size_of::<B>());
                prefetch(next, T * size_of::<B>());
                pack::block32::<B, D, T>(&tile, begin + b, packed.add(b * block_bytes));
            }
            let x = |i: usize| {
                let row = job.activations.row32(job.map.get(i).0);
                X32 {
                    codes: row.codes[32 * begin..].as_ptr(),
                    scales: row.scales[begin..].as_ptr(),
                    neg_sums: row.neg_sums[begin..].as_ptr(),
                    scaled_sums: row.scaled_sums[begin..].as_ptr(),
                }
            };
            let acc = acc.as_mut_ptr();
            for_groups!(M::GROUP, n_x, |i, R| {
                let x: [X32; R] = std::array::from_fn(|r| x(i + r));
                M::block32::<B, R>(packed, len, x, std::array::from_fn(|r| acc.add((i + r) * T)));
            });
        }
        write_out::<T>(job, first, n, acc);
    }
}

#[inline(always)]
unsafe fn block256<B: Decode256, D: Dot, M: Micro<T>, const T: usize>(
    job: &Job,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    let n_x = job.map.len();
    let n_blocks = job.weights.cols / 256;
    let block_bytes = pack::bytes256::<B, D, T>();
    let chunk = (PACKED_BYTES / (256 * T)).max(1);
    let packed = scratch.packed.ensure::<u8>(chunk * block_bytes).as_mut_ptr();
    let acc = scratch.acc.ensure::<f32>(n_x * T);
    for first in rows.clone().step_by(T) {
        let n = T.min(rows.end - first);
        let tile: [&[B]; T] = job.weights.tile(first, n);
        let next_tile = tile[T - 1].as_ptr_range().end.cast::<u8>();
        acc.fill(0.0);
        for begin in (0..n_blocks).step_by(chunk) {
            let len = chunk.min(n_blocks - begin);
            for b in 0..len {
                let next = next_tile.wrapping_add((begin + b) * T * size_of::<B>());
                prefetch(next, T * size_of::<B>());
                pack::block256::<B, D, T>(&tile, begin + b, packed.add(b * block_bytes));
            }
            let x = |i: usize| {
                let row = job.activations.row256(job.map.get(i).0);
                X256 {
                    codes: row.codes[256 * begin..].as_ptr(),
                    scales: row.scales[begin..].as_ptr(),
                    shifts: row.shifts[8 * begin..].as_ptr(),
                    sums: row.sums[16 * begin..].as_ptr(),
                }
            };
            let acc = acc.as_mut_ptr();
            for_groups!(M::GROUP, n_x, |i, R| {
                let x: [X256; R] = std::array::from_fn(|r| x(i + r));
                M::block256::<B, R>(packed, len, x, std::array::from_fn(|r| acc.add((i + r) * T)));
            });
        }
        write_out::<T>(job, first, n, acc);
    }
}

/// Copies the first `n` of each row's `T` results to the outputs of the weight rows from `first`.
#[inline(always)]
unsafe fn write_out<const T: usize>(job: &Job, first: usize, n: usize, acc: &[f32]) {
    for ((_, out_row), acc) in job.map.iter().zip(acc.chunks_exact(T)) {
        job.output(out_row, first, n).copy_from_slice(&acc[..n]);
    }
}
