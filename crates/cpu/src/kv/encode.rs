//! Storing a vector in a TurboQuant format: the arithmetic of [`lapidary_backend::kv::turbo::encode`] on sixteen lanes.

use lapidary_backend::kv::turbo::{self, NotFinite, block_dim, range_factors, thresholds};
use lapidary_backend::kv::{levels::levels, rotation::MAX_DIM};

use super::rotate::{chunk_signs, transform};
use super::stored::{Stored, Tq4, Tq5, Tq6, Tq8};
use crate::simd::{Chunk, Kernel, LANES, Simd};

/// Blocks of the longest head; heads beyond 32 elements have blocks of at least 32.
pub(crate) const MAX_BLOCKS: usize = MAX_DIM / 32;

/// Scales and offsets of a vector's blocks.
#[derive(Clone, Copy, Default)]
pub(super) struct Scales {
    pub(super) scales: [f32; MAX_BLOCKS],
    pub(super) offsets: [f32; MAX_BLOCKS],
}

/// Codes of one vector of a format.
pub(super) trait Encoded: Stored {
    /// Bits an element.
    const BITS: u32;

    /// Whether codes are even steps, not levels.
    const EVEN: bool;

    /// Packs one chunk: half `half` of the group. `codes` are whole numbers: even steps, or indices of magnitudes with
    /// the signs in `negative`.
    fn pack(&mut self, half: usize, codes: &Chunk, negative: u16);
}

impl Encoded for Tq8 {
    const BITS: u32 = 8;
    const EVEN: bool = true;

    #[inline(always)]
    fn pack(&mut self, half: usize, codes: &Chunk, _: u16) {
        self.0[half] = codes.map(|c| c as i8);
    }
}

/// Adds a half's low nibbles.
#[inline(always)]
fn put_nibbles(low: &mut [u8; LANES], half: usize, codes: &[u8; LANES]) {
    for i in 0..LANES {
        let code = codes[i] & 15;
        low[i] = if half == 0 { code } else { low[i] | code << 4 };
    }
}

/// Bit `bit` of each number.
#[inline(always)]
fn bits_of(codes: &[u8; LANES], bit: u32) -> u16 {
    codes.iter().enumerate().fold(0, |bits, (i, &c)| bits | u16::from(c >> bit & 1) << i)
}

impl Encoded for Tq4 {
    const BITS: u32 = 4;
    const EVEN: bool = false;

    #[inline(always)]
    fn pack(&mut self, half: usize, codes: &Chunk, negative: u16) {
        let mut codes = codes.map(|c| c as u8);
        for i in 0..LANES {
            codes[i] |= ((negative >> i & 1) as u8) << 3;
        }
        put_nibbles(&mut self.0, half, &codes);
    }
}

impl Encoded for Tq5 {
    const BITS: u32 = 5;
    const EVEN: bool = false;

    #[inline(always)]
    fn pack(&mut self, half: usize, codes: &Chunk, negative: u16) {
        put_nibbles(&mut self.low, half, &codes.map(|c| c as u8));
        self.negative[half] = negative;
    }
}

impl Encoded for Tq6 {
    const BITS: u32 = 6;
    const EVEN: bool = true;

    #[inline(always)]
    fn pack(&mut self, half: usize, codes: &Chunk, _: u16) {
        let codes = codes.map(|c| (c + 32.0) as u8);
        put_nibbles(&mut self.low, half, &codes);
        for (i, high) in self.high.iter_mut().enumerate() {
            let bits = codes[i] >> 4 | (codes[i + 8] >> 4) << 2;
            *high = if half == 0 { bits } else { *high | bits << 4 };
        }
    }
}

/// Encodes the vector `x`.
pub(super) struct Encode<'a, T> {
    pub(super) x: &'a [f32],
    pub(super) out: &'a mut [T],
}

impl<T: Encoded> Kernel for Encode<'_, T> {
    type Output = Result<Scales, NotFinite>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let (chunks, _) = self.x.as_chunks::<LANES>();
        let (mut check, mut max) = (s.splat(0.0), s.splat(0.0));
        for x in chunks {
            let x = s.load(x);
            check = s.mul_add(x, s.splat(0.0), check);
            max = s.max(s.abs(x), max);
        }
        if s.sum(check) != 0.0 {
            return Err(NotFinite);
        }
        let (down, up) = range_factors(s.max_lane(max));
        let mut rotated = [[0.0; LANES]; MAX_DIM / LANES];
        let rotated = &mut rotated[..chunks.len()];
        for (i, (x, y)) in chunks.iter().zip(&mut *rotated).enumerate() {
            s.store(s.mul(s.mul(s.load(x), s.splat(down)), s.load(chunk_signs(i))), y);
        }
        transform(s, rotated);
        let block = block_dim(self.x.len()) / LANES;
        let mut result = Scales::default();
        let finite = |x: f32| if x.is_finite() { Ok(x) } else { Err(NotFinite) };
        for (b, y) in rotated.chunks_exact(block).enumerate() {
            let first = b * block;
            if T::EVEN {
                let (scale, offset) = even_steps(s, y, first, self.out);
                result.scales[b] = finite(scale * up)?;
                result.offsets[b] = finite(offset * up)?;
            } else {
                let scale = nearest_levels(s, y, up, first, self.out);
                result.scales[b] = finite(scale * up)?;
            }
        }
        Ok(result)
    }
}

/// Even steps between the extremes of a block that begins with chunk `first`; gives scale and offset.
#[inline(always)]
fn even_steps<S: Simd, T: Encoded>(s: S, y: &[Chunk], first: usize, out: &mut [T]) -> (f32, f32) {
    let zero = s.splat(0.0);
    // The least number is minus the greatest of the negated ones.
    let (mut high, mut low) = (s.splat(f32::NEG_INFINITY), s.splat(f32::NEG_INFINITY));
    for y in y {
        let y = s.load(y);
        high = s.max(y, high);
        low = s.max(s.sub(zero, y), low);
    }
    // 0 - x is never -0.
    let (high, low) = (s.max_lane(high), 0.0 - s.max_lane(low));
    let (steps, middle) = turbo::even_steps(T::BITS);
    let inverse = steps / (high - low);
    if !inverse.is_finite() {
        for i in 0..y.len() {
            out[(first + i) / 2].pack((first + i) % 2, &[0.0; LANES], 0);
        }
        return (0.0, low);
    }
    /// Adding this rounds to the nearest integer, ties to even.
    const ROUND: f32 = 12_582_912.0;
    let [mut sum_c, mut sum_cc, mut sum_y, mut sum_cy] = [zero; 4];
    for (i, y) in y.iter().enumerate() {
        let y = s.load(y);
        let steps = s.mul(s.sub(y, s.splat(low)), s.splat(inverse));
        let steps = s.sub(s.add(steps, s.splat(ROUND)), s.splat(ROUND));
        let code = s.min(s.sub(steps, s.splat(middle)), s.splat(middle - 1.0));
        sum_c = s.add(sum_c, code);
        sum_cc = s.mul_add(code, code, sum_cc);
        sum_y = s.add(sum_y, y);
        sum_cy = s.mul_add(code, y, sum_cy);
        let mut codes = [0.0; LANES];
        s.store(code, &mut codes);
        out[(first + i) / 2].pack((first + i) % 2, &codes, 0);
    }
    let [c, cc, sum_y, cy] = s.sum4([sum_c, sum_cc, sum_y, sum_cy]);
    let n = 1.0 / (y.len() * LANES) as f32;
    let scale = (cy - c * sum_y * n) / (cc - c * c * n);
    (scale, (sum_y - scale * c) * n)
}

/// The nearest levels for a block that begins with chunk `first`; gives the scale.
#[inline(always)]
fn nearest_levels<S: Simd, T: Encoded>(s: S, y: &[Chunk], up: f32, first: usize, out: &mut [T]) -> f32 {
    const TINY: f32 = 1e-10;
    let zero = s.splat(0.0);
    let mut squares = zero;
    for y in y {
        let y = s.load(y);
        squares = s.mul_add(y, y, squares);
    }
    let norm = s.sum(squares).sqrt();
    if norm * up < TINY {
        for i in 0..y.len() {
            out[(first + i) / 2].pack((first + i) % 2, &[0.0; LANES], 0);
        }
        return 0.0;
    }
    let inverse = s.splat(((y.len() * LANES) as f32).sqrt() / norm);
    let levels = levels(T::BITS);
    let mut bounds = [0.0; 32];
    for (bound, t) in bounds.iter_mut().zip(thresholds(T::BITS)) {
        *bound = t;
    }
    let bounds = &bounds[..levels.len() - 1];
    let [mut dot, mut square] = [zero; 2];
    for (i, y) in y.iter().enumerate() {
        let y = s.load(y);
        let u = s.mul(y, inverse);
        let size = s.abs(u);
        let (mut index, mut level) = (zero, s.splat(levels[0]));
        for (bound, &next) in bounds.iter().zip(&levels[1..]) {
            let bound = s.splat(*bound);
            index = s.add(index, s.select_less(bound, size, s.splat(1.0), zero));
            level = s.select_less(bound, size, s.splat(next), level);
        }
        let below = s.select_less(u, zero, s.splat(1.0), zero);
        let chosen = s.select_less(u, zero, s.sub(zero, level), level);
        dot = s.mul_add(y, chosen, dot);
        square = s.mul_add(chosen, chosen, square);
        let (mut codes, mut negative) = ([0.0; LANES], [0.0; LANES]);
        s.store(index, &mut codes);
        s.store(below, &mut negative);
        out[(first + i) / 2].pack((first + i) % 2, &codes, bits_of(&negative.map(|x| x as u8), 0));
    }
    s.sum(dot) / s.sum(square)
}
