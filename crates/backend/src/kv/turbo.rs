//! The TurboQuant formats: rotated vectors, a few bits an element.
//!
//! TurboQuant (Zandieh et al., 2025, arXiv 2504.19874), the variant for least squared error. After the rotation
//! ([`super::rotation`]) the elements of a vector look like independent normal numbers whatever the vector
//! was, so that one quantiser serves all vectors. Vectors are cut into blocks of up to 256 elements:
//!
//! - `tq4`, `tq5`: an element is `scale * level`, the level one of the [Lloyd-Max levels](super::levels) of 4 or 5
//!   bits. The code is a sign and the index of a magnitude.
//! - `tq6`, `tq8`: an element is `offset + scale * code`, the code an integer from -32 to 31 or from -128 to 127. A
//!   block of 256 elements does not reach the tails for which Lloyd-Max spends its outer levels: even steps between
//!   the block's own extremes have the same error with 8 bits, one 4 % above with 6, cannot overflow, and need no
//!   table.
//!
//! Scales and offsets are those that make the squared error least for the codes chosen.
//!
//! # Stored form
//!
//! The codes of a vector come in groups of 32 elements, two *halves* of 16:
//!
//! | format | bytes of a group |
//! |---|---|
//! | `tq8` | 32 signed bytes |
//! | `tq4` | 16 bytes: byte `i` holds the code of element `i` in its low nibble, that of `16 + i` in the high one; a code is magnitude index + 8 * sign |
//! | `tq5` | the same 16 bytes with magnitude indices of 4 bits; 2 bytes of signs for each half, bit `i` that of element `i` |
//! | `tq6` | the same 16 bytes with the low 4 bits of code + 32; 8 bytes whose byte `i` holds the high 2 bits of elements `i`, `i + 8`, `i + 16` and `i + 24`, the first lowest |
//!
//! A head that is no multiple of 32 is padded with elements nobody reads. Scales are `f32`, one a block, for `tq6` and
//! `tq8` followed by the offsets, one a block; they stand apart from the codes, so that these stay aligned.

use super::KvFormat;
use super::levels::levels;
use super::rotation::{self, part_dim, rotate};

/// Elements of a group of codes.
pub const GROUP: usize = 32;

/// Elements of half a group.
const HALF: usize = 16;

/// Most elements of a block.
const MAX_BLOCK: usize = 256;

/// Norm below which a block is stored as zero.
const TINY: f32 = 1e-10;

/// A vector holds an infinite element, or one that is not a number, or its norm is beyond the range of `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFinite;

/// Elements that share a scale in a head of `head_dim` elements.
pub const fn block_dim(head_dim: usize) -> usize {
    let part = part_dim(head_dim);
    if part < MAX_BLOCK { part } else { MAX_BLOCK }
}

/// Whether heads of `head_dim` elements can be stored: 16, or a multiple of 32, at most 512.
pub const fn supports(head_dim: usize) -> bool {
    head_dim == HALF || (head_dim > 0 && head_dim.is_multiple_of(GROUP) && head_dim <= rotation::MAX_DIM)
}

/// The factors that bring a vector whose greatest magnitude is `max` near 1 and back: powers of two, so that
/// nothing is rounded, and neither tiny nor huge vectors leave the range of `f32` on the way.
pub fn range_factors(max: f32) -> (f32, f32) {
    let exponent = ((max.to_bits() >> 23) as i32 - 127).clamp(-126, 126);
    let power = |e: i32| f32::from_bits(((e + 127) as u32) << 23);
    (power(-exponent), power(exponent))
}

/// Encodes a head vector. `codes` and `scales` are as long as [`KvFormat::code_bytes`] and
/// [`KvFormat::scale_count`] say.
///
/// Sums run in sixteen partial sums (element mod 16, fused multiply-add, ascending) that are folded in halves: any
/// backend can make the same bytes.
///
/// # Errors
/// [`NotFinite`]; `codes` and `scales` are then unspecified.
///
/// # Panics
/// When `format` is no TurboQuant format or does not [support](supports) the vector's length.
pub fn encode(format: KvFormat, x: &[f32], codes: &mut [u8], scales: &mut [f32]) -> Result<(), NotFinite> {
    let bits = format.turbo_bits().expect("a TurboQuant format");
    assert!(supports(x.len()), "heads of {} elements", x.len());
    if !x.iter().all(|x| x.is_finite()) {
        return Err(NotFinite);
    }
    let max = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let (down, up) = range_factors(max);
    let mut y: Vec<f32> = x.iter().map(|x| x * down).collect();
    rotate(&mut y);
    codes.fill(0);
    let block = block_dim(x.len());
    let (scales, offsets) = scales.split_at_mut(x.len() / block);
    for (b, y) in y.chunks_exact(block).enumerate() {
        let at = b * block;
        if format.has_offsets() {
            let (scale, offset) = encode_even(bits, y, |i, code| put_even(bits, codes, at + i, code));
            (scales[b], offsets[b]) = (scale * up, offset * up);
        } else {
            let scale = encode_levels(bits, y, up, |i, index, negative| {
                put(bits, codes, at + i, index, negative);
            });
            scales[b] = scale * up;
        }
    }
    if scales.iter().chain(&*offsets).all(|s| s.is_finite()) { Ok(()) } else { Err(NotFinite) }
}

/// Codes of a block by even steps; gives scale and offset.
fn encode_even(bits: u32, y: &[f32], mut put: impl FnMut(usize, i8)) -> (f32, f32) {
    let (steps, half) = even_steps(bits);
    let (low, high) = y.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &y| (l.min(y), h.max(y)));
    // +0 for -0.
    let low = low + 0.0;
    let inverse = steps / (high - low);
    if !inverse.is_finite() {
        (0..y.len()).for_each(|i| put(i, 0));
        return (0.0, low);
    }
    let codes: Vec<f32> =
        y.iter().map(|&y| (((y - low) * inverse).round_ties_even() - half).min(half - 1.0)).collect();
    codes.iter().enumerate().for_each(|(i, &c)| put(i, c as i8));
    let n = 1.0 / y.len() as f32;
    let sum_c = lanes(&codes);
    let sum_cc = lanes_fma(&codes, &codes);
    let sum_y = lanes(y);
    let sum_cy = lanes_fma(&codes, y);
    let scale = (sum_cy - sum_c * sum_y * n) / (sum_cc - sum_c * sum_c * n);
    (scale, (sum_y - scale * sum_c) * n)
}

/// Codes of a block by Lloyd-Max levels; gives the scale. `up` is the factor that the caller will apply to it.
fn encode_levels(bits: u32, y: &[f32], up: f32, mut put: impl FnMut(usize, usize, bool)) -> f32 {
    let levels = levels(bits);
    let norm = lanes_fma(y, y).sqrt();
    if norm * up < TINY {
        return 0.0;
    }
    let inverse = (y.len() as f32).sqrt() / norm;
    let mut chosen = vec![0.0; y.len()];
    for (i, (&y, chosen)) in y.iter().zip(&mut chosen).enumerate() {
        let u = y * inverse;
        let index = thresholds(bits).filter(|&t| u.abs() > t).count();
        put(i, index, u < 0.0);
        *chosen = if u < 0.0 { -levels[index] } else { levels[index] };
    }
    lanes_fma(y, &chosen) / lanes_fma(&chosen, &chosen)
}

/// The magnitudes at which the code changes, ascending.
pub fn thresholds(bits: u32) -> impl Iterator<Item = f32> {
    levels(bits).windows(2).map(|l| 0.5 * (l[0] + l[1]))
}

/// The codes of a group of `bits` bits an element take so many bytes.
pub const fn group_bytes(bits: u32) -> usize {
    GROUP * bits as usize / 8
}

/// Where an element's nibble lies: byte and shift.
fn nibble(bits: u32, element: usize) -> (usize, usize) {
    let (group, i) = (element / GROUP, element % GROUP);
    (group * group_bytes(bits) + i % HALF, 4 * (i / HALF))
}

/// Where the sign of a `tq5` code lies: byte and shift.
fn sign_bit(element: usize) -> (usize, usize) {
    let (group, i) = (element / GROUP, element % GROUP);
    (group * group_bytes(5) + HALF + i / 8, i % 8)
}

fn put(bits: u32, codes: &mut [u8], element: usize, index: usize, negative: bool) {
    let (byte, shift) = nibble(bits, element);
    let sign = u8::from(negative);
    let low = if bits == 4 { index as u8 | sign << 3 } else { index as u8 & 15 };
    codes[byte] |= low << shift;
    if bits == 5 {
        let (byte, shift) = sign_bit(element);
        codes[byte] |= sign << shift;
    }
}

fn get(bits: u32, codes: &[u8], element: usize) -> (usize, bool) {
    let (byte, shift) = nibble(bits, element);
    let low = usize::from(codes[byte] >> shift & 15);
    if bits == 4 {
        return (low & 7, low > 7);
    }
    let (byte, shift) = sign_bit(element);
    (low, codes[byte] >> shift & 1 == 1)
}

/// Decodes a vector, still rotated.
///
/// # Panics
/// As [`encode`].
pub fn decode_rotated(format: KvFormat, codes: &[u8], scales: &[f32], out: &mut [f32]) {
    let bits = format.turbo_bits().expect("a TurboQuant format");
    let block = block_dim(out.len());
    let n_blocks = out.len() / block;
    for (i, out) in out.iter_mut().enumerate() {
        let scale = scales[i / block];
        *out = if format.has_offsets() {
            f32::from(get_even(bits, codes, i)).mul_add(scale, scales[n_blocks + i / block])
        } else {
            let (index, negative) = get(bits, codes, i);
            let level = levels(bits)[index];
            scale * if negative { -level } else { level }
        };
    }
}

/// Decodes a vector.
///
/// # Panics
/// As [`encode`].
pub fn decode(format: KvFormat, codes: &[u8], scales: &[f32], out: &mut [f32]) {
    decode_rotated(format, codes, scales, out);
    rotation::unrotate(out);
}

/// `sum x` in sixteen partial sums.
fn lanes(x: &[f32]) -> f32 {
    let mut sums = [0.0f32; HALF];
    for (i, &x) in x.iter().enumerate() {
        sums[i % HALF] += x;
    }
    fold(sums)
}

/// `sum a b` in sixteen partial sums.
fn lanes_fma(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; HALF];
    for (i, (&a, &b)) in a.iter().zip(b).enumerate() {
        sums[i % HALF] = a.mul_add(b, sums[i % HALF]);
    }
    fold(sums)
}

fn fold(mut sums: [f32; HALF]) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
    }
    sums[0]
}

/// Steps between the extremes of a block, and what is subtracted from them to make a code.
pub fn even_steps(bits: u32) -> (f32, f32) {
    (((1 << bits) - 1) as f32, (1 << (bits - 1)) as f32)
}

fn put_even(bits: u32, codes: &mut [u8], element: usize, code: i8) {
    if bits == 8 {
        codes[element] = code as u8;
        return;
    }
    let code = (code + 32) as u8;
    let (byte, shift) = nibble(bits, element);
    codes[byte] |= (code & 15) << shift;
    let (byte, shift) = high_bits(element);
    codes[byte] |= (code >> 4) << shift;
}

fn get_even(bits: u32, codes: &[u8], element: usize) -> i8 {
    if bits == 8 {
        return codes[element] as i8;
    }
    let (low, low_shift) = nibble(bits, element);
    let (high, high_shift) = high_bits(element);
    ((codes[low] >> low_shift & 15) | (codes[high] >> high_shift & 3) << 4) as i8 - 32
}

/// Where the high two bits of a `tq6` code lie: byte and shift.
fn high_bits(element: usize) -> (usize, usize) {
    let (group, i) = (element / GROUP, element % GROUP);
    (group * group_bytes(6) + HALF + i % 8, 2 * (i / 8))
}

#[cfg(test)]
#[path = "turbo_tests.rs"]
mod tests;
