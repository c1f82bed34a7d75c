//! Sixteen `f32` lanes on every instruction set, with the same bits on all of them.
//!
//! A kernel is written once over [`Simd`] and entered through [`Isa::run`], which compiles it for each instruction
//! set. Every operation of the trait is defined lane by lane and rounded as IEEE 754 says, so the choice of
//! instruction set cannot change a result. Values of the implementing types are tokens: they are only made after
//! the processor was asked, which is why the trait's methods are safe.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use half::f16;

use crate::linear::isa::{Isa, Level};

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Sixteen numbers in memory.
pub(crate) type Chunk = [f32; LANES];

/// Operations on vectors of sixteen `f32`.
pub(crate) trait Simd: Copy {
    /// Sixteen lanes.
    type F: Copy;

    /// Whether sixteen accumulators and their operands fit in registers; otherwise four do.
    const MANY_REGISTERS: bool;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, from: &Chunk) -> Self::F;
    fn load_f16(self, from: &[f16; LANES]) -> Self::F;
    fn load_i8(self, from: &[i8; LANES]) -> Self::F;
    /// Integers from -32 to 31, as numbers from 0 to 63 less 32: their low four bits in the low nibbles, for the
    /// second sixteen in the high ones; the high two bits of numbers `i`, `i + 8`, `i + 16`, `i + 24` in byte `i`.
    fn load_i6(self, low: &[u8; LANES], high: &[u8; LANES / 2]) -> [Self::F; 2];
    /// `table[n]` for the low nibble `n` of each byte, then for the high ones.
    fn nibble_levels(self, codes: &[u8; LANES], table: &Chunk) -> [Self::F; 2];
    /// `-v` in the lanes whose bit is set.
    fn negate_where(self, bits: u16, v: Self::F) -> Self::F;
    /// Lane `i` gets lane `i ^ D` of `v`; `D` is 1, 2, 4 or 8.
    fn exchange<const D: usize>(self, v: Self::F) -> Self::F;
    fn store(self, v: Self::F, to: &mut Chunk);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`: `b` where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`: `b` where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { yes } else { no }`.
    fn select_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// `2^n` for `n` in the low bits of `v`'s bit pattern, as adding `1.5 * 2^23` leaves them; -126 <= n <= 128,
    /// where 128 gives infinity.
    fn exp2_of_low_bits(self, v: Self::F) -> Self::F;
    /// The magnitude of `a` with the sign of `sign`.
    fn copy_sign(self, a: Self::F, sign: Self::F) -> Self::F;
    fn abs(self, a: Self::F) -> Self::F;
    /// The sum of the lanes, folded in halves: lane `i` plus lane `i + 8`, then `i + 4`, `i + 2`, `i + 1`.
    fn sum(self, v: Self::F) -> f32;
    /// The greatest lane by [`max`](Simd::max), folded as [`sum`](Simd::sum).
    fn max_lane(self, v: Self::F) -> f32;
    /// [`sum`](Simd::sum) of four vectors.
    fn sum4(self, v: [Self::F; 4]) -> [f32; 4];
    /// [`sum`](Simd::sum) of sixteen vectors: `[i][j]` is that of `v[i][j]`.
    fn sum4x4(self, v: [[Self::F; 4]; 4]) -> [[f32; 4]; 4];

    /// Up to sixteen numbers; missing ones are 0.
    #[inline(always)]
    fn load_part(self, from: &[f32]) -> Self::F {
        let mut chunk = [0.0; LANES];
        chunk[..from.len()].copy_from_slice(from);
        self.load(&chunk)
    }

    /// The sixteen numbers of `from` at `at`; those beyond the end are 0.
    #[inline(always)]
    fn load_at(self, from: &[f32], at: usize) -> Self::F {
        let from = &from[at..];
        match from.first_chunk() {
            Some(chunk) => self.load(chunk),
            None => self.load_part(from),
        }
    }

    /// Writes the lanes to `to` at `at`, as many as there is room for.
    #[inline(always)]
    fn store_at(self, v: Self::F, to: &mut [f32], at: usize) {
        let to = &mut to[at..];
        if let Some(chunk) = to.first_chunk_mut() {
            return self.store(v, chunk);
        }
        let mut chunk = [0.0; LANES];
        self.store(v, &mut chunk);
        to.copy_from_slice(&chunk[..to.len()]);
    }
}

/// A computation that is compiled for each instruction set.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;

    /// The computation. Implementations are `#[inline(always)]`, so that they take on the features of the entry
    /// point that calls them; so are the functions they call, and closures are avoided in their loops.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

impl Isa {
    /// Runs `kernel` with this instruction set.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.level() {
            Level::Portable => kernel.run(portable::Portable),
            // SAFETY: an `Isa` of this level only exists where the processor has the features.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { x86::run_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { x86::run_avx512(kernel) },
        }
    }
}

#[cfg(test)]
mod tests;
