//! Activation rows rounded to 8 bits.
//!
//! A block of 32 activations `x` is stored as codes `q` in -127..=127 with `x ~ scale * q`:
//! `scale = amax / 127`, `q = round_half_even(x * (127 / amax))`. A superblock of 256 has one scale too, that of
//! its finest group of 32: a group's numbers are `x ~ scale * 2^shift * q` with a shift of 0 to 3, so that groups
//! without the superblock's outliers are rounded up to eight times finer while sums stay integers. A block whose greatest magnitude is below
//! [`TINY`] becomes zero (its reciprocal would overflow); a block with a NaN or an infinity gets zero codes and
//! a NaN scale, so that the products of this row, and only of this row, become NaN.

use super::aligned::AlignedVec;
use super::isa::{Isa, Level};
use super::shared::Disjoint;
use crate::pool::Pool;

/// Blocks whose greatest magnitude is below this are rounded to zero.
pub(super) const TINY: f32 = 1e-36;

/// Which roundings the weights of a product need.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Forms {
    pub(super) block32: bool,
    pub(super) block256: bool,
}

/// Reusable storage of prepared activation rows.
#[derive(Default)]
pub(super) struct Activations {
    cols: usize,
    n_rows: usize,
    codes32: AlignedVec,
    scales32: AlignedVec,
    neg_sums: AlignedVec,
    scaled_sums: AlignedVec,
    codes256: AlignedVec,
    scales256: AlignedVec,
    shifts: AlignedVec,
    sums: AlignedVec,
}

/// A row in blocks of 32.
#[derive(Clone, Copy)]
pub(super) struct Row32<'a> {
    /// One code a column.
    pub(super) codes: &'a [i8],
    /// One scale a block.
    pub(super) scales: &'a [f32],
    /// The sum of a block's codes, negated.
    pub(super) neg_sums: &'a [i32],
    /// The sum of a block's codes times its scale.
    pub(super) scaled_sums: &'a [f32],
}

impl Row32<'_> {
    /// Appends the numbers that the codes stand for.
    pub(super) fn decode(&self, out: &mut Vec<f32>) {
        for (codes, scale) in self.codes.chunks_exact(32).zip(self.scales) {
            out.extend(codes.iter().map(|&code| scale * f32::from(code)));
        }
    }
}

impl Row256<'_> {
    /// Appends the numbers that the codes stand for.
    pub(super) fn decode(&self, out: &mut Vec<f32>) {
        for (group, (codes, shift)) in self.codes.chunks_exact(32).zip(self.shifts).enumerate() {
            let scale = self.scales[group / 8] * f32::from(1u8 << shift);
            out.extend(codes.iter().map(|&code| scale * f32::from(code)));
        }
    }
}

/// A row in superblocks of 256.
#[derive(Clone, Copy)]
pub(super) struct Row256<'a> {
    /// One code a column.
    pub(super) codes: &'a [i8],
    /// One scale a superblock.
    pub(super) scales: &'a [f32],
    /// The power of two that the codes of each 32 columns are multiplied by.
    pub(super) shifts: &'a [u8],
    /// The sums of each 16 codes, shifted.
    pub(super) sums: &'a [i16],
}

/// Where the quantiser of blocks of 32 writes a row.
pub(super) struct Out32<'a> {
    pub(super) codes: &'a mut [i8],
    pub(super) scales: &'a mut [f32],
    pub(super) neg_sums: &'a mut [i32],
    pub(super) scaled_sums: &'a mut [f32],
}

/// Where the quantiser of superblocks writes a row.
pub(super) struct Out256<'a> {
    pub(super) codes: &'a mut [i8],
    pub(super) scales: &'a mut [f32],
    pub(super) shifts: &'a mut [u8],
    pub(super) sums: &'a mut [i16],
}

/// Elements below which rows are prepared by the caller alone: waking the pool would take longer.
const FORK_ABOVE: usize = 16 * 1024;

impl Activations {
    /// Rounds `n_rows` rows of `cols` numbers to the `forms` asked for.
    pub(super) fn prepare(
        &mut self,
        pool: &Pool,
        isa: Isa,
        forms: Forms,
        x: &[f32],
        (n_rows, cols): (usize, usize),
    ) {
        (self.n_rows, self.cols) = (n_rows, cols);
        let rows_each = (FORK_ABOVE / 4 / cols.max(1)).max(1);
        let n_tasks = n_rows.div_ceil(rows_each);
        let for_rows = |work: &(dyn Fn(usize) + Sync)| {
            let task = |index: usize, _thread: usize| {
                (index * rows_each..n_rows.min((index + 1) * rows_each)).for_each(work);
            };
            if n_rows * cols <= FORK_ABOVE {
                (0..n_tasks).for_each(|index| task(index, 0));
            } else {
                pool.run(n_tasks, task);
            }
        };
        if forms.block32 {
            let blocks = cols / 32;
            let codes = Disjoint::new(self.codes32.ensure::<i8>(n_rows * cols));
            let scales = Disjoint::new(self.scales32.ensure::<f32>(n_rows * blocks));
            let neg_sums = Disjoint::new(self.neg_sums.ensure::<i32>(n_rows * blocks));
            let scaled_sums = Disjoint::new(self.scaled_sums.ensure::<f32>(n_rows * blocks));
            for_rows(&|r| {
                // SAFETY: each row is prepared once.
                let out = unsafe {
                    Out32 {
                        codes: codes.range(r * cols, cols),
                        scales: scales.range(r * blocks, blocks),
                        neg_sums: neg_sums.range(r * blocks, blocks),
                        scaled_sums: scaled_sums.range(r * blocks, blocks),
                    }
                };
                quantize32(isa, &x[r * cols..(r + 1) * cols], out);
            });
        }
        if forms.block256 {
            let blocks = cols / 256;
            let codes = Disjoint::new(self.codes256.ensure::<i8>(n_rows * cols));
            let scales = Disjoint::new(self.scales256.ensure::<f32>(n_rows * blocks));
            let shifts = Disjoint::new(self.shifts.ensure::<u8>(n_rows * blocks * 8));
            let sums = Disjoint::new(self.sums.ensure::<i16>(n_rows * blocks * 16));
            for_rows(&|r| {
                // SAFETY: each row is prepared once.
                let out = unsafe {
                    Out256 {
                        codes: codes.range(r * cols, cols),
                        scales: scales.range(r * blocks, blocks),
                        shifts: shifts.range(r * blocks * 8, blocks * 8),
                        sums: sums.range(r * blocks * 16, blocks * 16),
                    }
                };
                quantize256(isa, &x[r * cols..(r + 1) * cols], out);
            });
        }
    }

    /// Row `r` as [`Activations::prepare`] left it, in blocks of 32.
    pub(super) fn row32(&self, r: usize) -> Row32<'_> {
        let blocks = self.cols / 32;
        Row32 {
            codes: &self.codes32.get(self.n_rows * self.cols)[r * self.cols..][..self.cols],
            scales: &self.scales32.get(self.n_rows * blocks)[r * blocks..][..blocks],
            neg_sums: &self.neg_sums.get(self.n_rows * blocks)[r * blocks..][..blocks],
            scaled_sums: &self.scaled_sums.get(self.n_rows * blocks)[r * blocks..][..blocks],
        }
    }

    /// Row `r` as [`Activations::prepare`] left it, in superblocks.
    pub(super) fn row256(&self, r: usize) -> Row256<'_> {
        let blocks = self.cols / 256;
        Row256 {
            codes: &self.codes256.get(self.n_rows * self.cols)[r * self.cols..][..self.cols],
            scales: &self.scales256.get(self.n_rows * blocks)[r * blocks..][..blocks],
            shifts: &self.shifts.get(self.n_rows * blocks * 8)[r * blocks * 8..][..blocks * 8],
            sums: &self.sums.get(self.n_rows * blocks * 16)[r * blocks * 16..][..blocks * 16],
        }
    }
}

/// Factors of a block from the bits of its greatest magnitude: what codes are multiplied with on the way in and
/// on the way out. `None` when all codes are zero; the scale then says whether the block was finite.
#[inline(always)]
pub(super) fn factors(amax_bits: u32) -> (Option<f32>, f32) {
    const INFINITY: u32 = f32::INFINITY.to_bits();
    let amax = f32::from_bits(amax_bits);
    if amax_bits >= INFINITY {
        (None, f32::NAN)
    } else if amax < TINY {
        (None, 0.0)
    } else {
        (Some(127.0 / amax), amax / 127.0)
    }
}

/// The largest shift of a group in a superblock.
const MAX_SHIFT: u8 = 3;

/// Factors of a superblock: what codes are multiplied with on the way in at the largest shift, and the scale.
#[inline(always)]
pub(super) fn factors256(amax_bits: u32) -> (Option<f32>, f32) {
    let (inverse, scale) = factors(amax_bits);
    (inverse, scale / f32::from(1u8 << MAX_SHIFT))
}

/// The shift of a group and its factor on the way in: the finest rounding at which the group's greatest magnitude
/// still has a code. `inverse` is the superblock's, both magnitudes are finite.
#[inline(always)]
pub(super) fn group_factor(inverse: f32, amax_bits: u32, group_amax_bits: u32) -> (u8, f32) {
    let (amax, mut reach) = (f32::from_bits(amax_bits), f32::from_bits(group_amax_bits));
    let (mut shift, mut factor) = (MAX_SHIFT, inverse);
    while shift > 0 && 2.0 * reach <= amax {
        (shift, reach, factor) = (shift - 1, 2.0 * reach, 2.0 * factor);
    }
    (shift, factor)
}

/// The greatest magnitude's bits, which order like the numbers, with infinities and NaNs above.
fn magnitude_bits(x: &[f32]) -> u32 {
    x.iter().fold(0, |m, v| m.max(v.to_bits() & 0x7fff_ffff))
}

fn round(x: &[f32], inverse: f32, codes: &mut [i8]) {
    for (code, v) in codes.iter_mut().zip(x) {
        *code = (v * inverse).round_ties_even() as i8;
    }
}

/// Rounds one block and returns its scale.
fn quantize_block(x: &[f32], codes: &mut [i8]) -> f32 {
    let (inverse, scale) = factors(magnitude_bits(x));
    match inverse {
        Some(inverse) => round(x, inverse, codes),
        None => codes.fill(0),
    }
    scale
}

/// Rounds one superblock group by group and returns its scale.
fn quantize_superblock(x: &[f32], codes: &mut [i8], shifts: &mut [u8]) -> f32 {
    let amax_bits = magnitude_bits(x);
    let (inverse, scale) = factors256(amax_bits);
    let Some(inverse) = inverse else {
        codes.fill(0);
        shifts.fill(0);
        return scale;
    };
    for ((x, codes), shift) in x.chunks_exact(32).zip(codes.chunks_exact_mut(32)).zip(shifts) {
        let factor;
        (*shift, factor) = group_factor(inverse, amax_bits, magnitude_bits(x));
        round(x, factor, codes);
    }
    scale
}

fn quantize32(isa: Isa, x: &[f32], out: Out32) {
    match isa.level() {
        // SAFETY: an `Isa` above the portable one exists only on machines with AVX2.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => unsafe { super::x86::quantize::row32(x, out) },
        Level::Portable => {
            for (b, (x, codes)) in x.chunks_exact(32).zip(out.codes.chunks_exact_mut(32)).enumerate() {
                let scale = quantize_block(x, codes);
                let sum: i32 = codes.iter().map(|c| i32::from(*c)).sum();
                out.scales[b] = scale;
                out.neg_sums[b] = -sum;
                out.scaled_sums[b] = scale * sum as f32;
            }
        }
    }
}

fn quantize256(isa: Isa, x: &[f32], out: Out256) {
    match isa.level() {
        // SAFETY: an `Isa` above the portable one exists only on machines with AVX2.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => unsafe { super::x86::quantize::row256(x, out) },
        Level::Portable => {
            for (b, (x, codes)) in x.chunks_exact(256).zip(out.codes.chunks_exact_mut(256)).enumerate() {
                let shifts = &mut out.shifts[8 * b..][..8];
                out.scales[b] = quantize_superblock(x, codes, shifts);
                for (g, (sum, group)) in
                    out.sums[16 * b..][..16].iter_mut().zip(codes.chunks_exact(16)).enumerate()
                {
                    *sum = group.iter().map(|c| i16::from(*c)).sum::<i16>() << shifts[g / 2];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a quantiser made of a row, scales as bits.
    #[derive(Debug, PartialEq)]
    struct Prepared {
        codes32: Vec<i8>,
        scales32: Vec<u32>,
        neg_sums: Vec<i32>,
        scaled_sums: Vec<u32>,
        codes256: Vec<i8>,
        scales256: Vec<u32>,
        shifts: Vec<u8>,
        sums: Vec<i16>,
    }

    fn prepared(isa: Isa, x: &[f32]) -> Prepared {
        let mut rows = Activations::default();
        let forms = Forms { block32: true, block256: true };
        rows.prepare(&Pool::new(1), isa, forms, x, (1, x.len()));
        let (a, b) = (rows.row32(0), rows.row256(0));
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect();
        Prepared {
            codes32: a.codes.to_vec(),
            scales32: bits(a.scales),
            neg_sums: a.neg_sums.to_vec(),
            scaled_sums: bits(a.scaled_sums),
            codes256: b.codes.to_vec(),
            scales256: bits(b.scales),
            shifts: b.shifts.to_vec(),
            sums: b.sums.to_vec(),
        }
    }

    #[test]
    fn every_instruction_set_rounds_alike() {
        let wave: Vec<f32> = (0..512).map(|i| (i as f32 * 0.37).sin() * (1.0 + i as f32)).collect();
        let halves: Vec<f32> = (0..256).map(|i| if i == 0 { 127.0 } else { i as f32 % 90.0 + 0.5 }).collect();
        let mut broken = wave.clone();
        (broken[3], broken[40], broken[300]) = (f32::NAN, f32::NEG_INFINITY, f32::INFINITY);
        let tiny: Vec<f32> = wave.iter().map(|v| v * 1e-40).collect();
        let zero = vec![0.0; 256];
        for x in [wave, halves, broken, tiny, zero] {
            let expected = prepared(Isa::PORTABLE, &x);
            for isa in Isa::available() {
                assert_eq!(prepared(isa, &x), expected, "{isa}");
            }
        }
    }

    #[test]
    fn codes_reproduce_the_numbers_within_half_a_step() {
        let x: Vec<f32> = (0..256).map(|i| (i as f32 * 1.7).cos() * 3.0).collect();
        let mut rows = Activations::default();
        let forms = Forms { block32: true, block256: true };
        rows.prepare(&Pool::new(1), Isa::detect(), forms, &x, (1, 256));
        let (a, b) = (rows.row32(0), rows.row256(0));
        for (i, v) in x.iter().enumerate() {
            let (s32, s256) = (a.scales[i / 32], b.scales[0] * f32::from(1u8 << b.shifts[i / 32]));
            assert!((f32::from(a.codes[i]) * s32 - v).abs() <= 0.5001 * s32);
            assert!((f32::from(b.codes[i]) * s256 - v).abs() <= 0.5001 * s256);
        }
    }

    #[test]
    fn an_outlier_coarsens_only_its_own_group() {
        let mut x: Vec<f32> = (0..256).map(|i| (i as f32 * 1.7).cos()).collect();
        x[100] = 50.0;
        let mut rows = Activations::default();
        let forms = Forms { block32: false, block256: true };
        rows.prepare(&Pool::new(1), Isa::detect(), forms, &x, (1, 256));
        let row = rows.row256(0);
        assert_eq!(row.shifts, [0, 0, 0, 3, 0, 0, 0, 0]);
        assert!((row.scales[0] - 50.0 / 127.0 / 8.0).abs() < 1e-6);
        let sum: i16 = row.codes[96..112].iter().map(|c| i16::from(*c)).sum();
        assert_eq!(row.sums[6], sum << 3);
    }

    #[test]
    fn a_block_with_a_nan_is_marked_and_its_neighbours_are_not() {
        let mut x = vec![1.0; 512];
        x[40] = f32::NAN;
        let mut rows = Activations::default();
        let forms = Forms { block32: true, block256: true };
        rows.prepare(&Pool::new(1), Isa::detect(), forms, &x, (1, 512));
        let nan: Vec<bool> = rows.row32(0).scales.iter().map(|s| s.is_nan()).collect();
        assert_eq!(nan.iter().filter(|n| **n).count(), 1);
        assert!(nan[1]);
        assert!(rows.row256(0).scales[0].is_nan() && !rows.row256(0).scales[1].is_nan());
    }
}
