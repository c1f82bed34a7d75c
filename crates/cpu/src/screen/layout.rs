//! How the coarse copy lies in memory.
//!
//! Rows come in tiles of eight, so that a vector of 32 bytes holds four columns of each and a vector lane is a row.
//! Columns are ordered by importance. A tile is, in this order:
//!
//! - for each block of 32 of the most important columns: eight vectors of signed 8-bit codes, the `g`-th with columns
//!   `4g..4g+4`, and eight scales;
//! - for each other block: four vectors of 4-bit codes plus 8, the `g`-th with columns `4g..4g+4` in its low and
//!   `16+4g..16+4g+4` in its high halves, and eight scales;
//! - for each segment of columns eight norms of what the codes leave out of the weights, then the norms of the 8-bit
//!   and of the 4-bit columns, the greater one of weights and codes. Norms are rounded up.
//!
//! Scales and norms are half floats.

use half::f16;
use lapidary_gguf::block;

use crate::linear::isa::Level;
use crate::matrix::CpuMatrix;

/// Rows of a tile.
pub(super) const TILE: usize = 8;
/// Columns of a block.
pub(super) const BLOCK: usize = 32;
/// Blocks in 8 bits.
const WIDE_BLOCKS: usize = 2;
/// Bytes of a number of each row of a tile.
pub(super) const NUMBERS: usize = TILE * size_of::<f16>();
/// Bytes of a block of 8-bit columns.
pub(super) const WIDE_BYTES: usize = TILE * BLOCK + NUMBERS;
/// Bytes of a block of 4-bit columns.
pub(super) const NARROW_BYTES: usize = TILE * BLOCK / 2 + NUMBERS;
/// Segments of columns whose errors are bounded apart.
const SEGMENTS: usize = 4;

/// The order of the columns and what lies where.
#[derive(Debug)]
pub(super) struct Layout {
    /// The matrix's column of each place.
    pub(super) order: Vec<u32>,
    /// Blocks in 8 bits.
    pub(super) wide: usize,
    /// The end of each segment, in blocks; the first one is that of the 8-bit columns.
    pub(super) segments: Vec<usize>,
}

/// A row's codes and errors.
struct Coded {
    codes: Vec<i8>,
    scales: Vec<f16>,
    /// Squares of the errors, of the weights and of the coded weights, by block.
    squares: Vec<[f32; 3]>,
}

impl Layout {
    /// The layout for rows of as many columns as `importance` has, the greatest first; `None` when the columns are no
    /// multiple of 32 or fewer than 128.
    pub(super) fn new(cols: usize, importance: &[f32]) -> Option<Self> {
        Self::tile_bytes_for(cols)?;
        let mut order: Vec<u32> = (0..cols as u32).collect();
        let key = |&c: &u32| importance.get(c as usize).copied().unwrap_or(0.0);
        order.sort_by(|a, b| key(b).total_cmp(&key(a)));
        let (wide, n_blocks) = (WIDE_BLOCKS, cols / BLOCK);
        let narrow = n_blocks - wide;
        // The energy falls off quickly at first.
        let segments = vec![wide, wide + (2 * narrow).div_ceil(9), wide + (4 * narrow).div_ceil(9), n_blocks];
        debug_assert_eq!(segments.len(), SEGMENTS);
        Some(Self { order, wide, segments })
    }

    /// Bytes of a tile of rows of `cols` columns.
    pub(super) fn tile_bytes_for(cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(BLOCK) || cols / BLOCK < 2 * WIDE_BLOCKS {
            return None;
        }
        let narrow = cols / BLOCK - WIDE_BLOCKS;
        Some(WIDE_BLOCKS * WIDE_BYTES + narrow * NARROW_BYTES + (SEGMENTS + 2) * NUMBERS)
    }

    /// Bytes of a tile.
    pub(super) fn tile_bytes(&self) -> usize {
        Self::tile_bytes_for(self.order.len()).expect("checked when the layout was made")
    }

    /// Writes the tiles of `matrix` from tile `first` on. False when a weight or a norm is not finite.
    pub(super) fn encode(&self, level: Level, matrix: &CpuMatrix, first: usize, out: &mut [u8]) -> bool {
        let cols = self.order.len();
        let (mut stored, mut values) = (vec![0.0; cols], vec![0.0; cols]);
        let mut coded = Coded {
            codes: vec![0; cols],
            scales: vec![f16::ZERO; cols / BLOCK],
            squares: vec![[0.0; 3]; cols / BLOCK],
        };
        let rows = matrix.data().rows;
        for (t, tile) in out.chunks_exact_mut(self.tile_bytes()).enumerate() {
            for lane in 0..TILE {
                let row = (first + t) * TILE + lane;
                if row < rows {
                    block::dequantize(matrix.data().ty, matrix.row_bytes(row), &mut stored)
                        .expect("a matrix row holds its columns");
                } else {
                    stored.fill(0.0);
                }
                for (value, &column) in values.iter_mut().zip(&self.order) {
                    *value = stored[column as usize];
                }
                match level {
                    Level::Portable => coded.encode(self.wide, &values),
                    // SAFETY: such a level is only made where the machine has AVX2, FMA and F16C.
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 | Level::Avx512 => unsafe { coded.encode_avx2(self.wide, &values) },
                }
                if !self.place(&coded, lane, tile) {
                    return false;
                }
            }
        }
        true
    }

    /// Writes a coded row as row `lane` of a tile.
    fn place(&self, coded: &Coded, lane: usize, tile: &mut [u8]) -> bool {
        let (wide, rest) = tile.split_at_mut(self.wide * WIDE_BYTES);
        let narrow_blocks = self.order.len() / BLOCK - self.wide;
        let (narrow, norms) = rest.split_at_mut(narrow_blocks * NARROW_BYTES);
        let put =
            |to: &mut [u8], value: f16| to[2 * lane..2 * lane + 2].copy_from_slice(&value.to_le_bytes());
        let mut blocks = coded.codes.chunks_exact(BLOCK).zip(&coded.scales);
        for (to, (codes, &scale)) in wide.chunks_exact_mut(WIDE_BYTES).zip(&mut blocks) {
            for (g, four) in codes.chunks_exact(4).enumerate() {
                to[TILE * 4 * g + 4 * lane..][..4].copy_from_slice(bytemuck::cast_slice(four));
            }
            put(&mut to[TILE * BLOCK..], scale);
        }
        for (to, (codes, &scale)) in narrow.chunks_exact_mut(NARROW_BYTES).zip(&mut blocks) {
            for g in 0..4 {
                for i in 0..4 {
                    let (low, high) = (codes[4 * g + i] + 8, codes[16 + 4 * g + i] + 8);
                    to[TILE * 4 * g + 4 * lane + i] = (low | high << 4) as u8;
                }
            }
            put(&mut to[TILE * BLOCK / 2..], scale);
        }
        let norm = |blocks: &[[f32; 3]], which: usize| {
            let sum: f64 = blocks.iter().map(|s| f64::from(s[which])).sum();
            sum.sqrt()
        };
        let mut numbers = Vec::with_capacity(SEGMENTS + 2);
        let mut begin = 0;
        for &end in &self.segments {
            numbers.push(norm(&coded.squares[begin..end], 0));
            begin = end;
        }
        let (first, second) = coded.squares.split_at(self.wide);
        numbers.extend([first, second].map(|part| norm(part, 1).max(norm(part, 2))));
        for (to, number) in norms.chunks_exact_mut(NUMBERS).zip(numbers) {
            let Some(up) = rounded_up(number) else { return false };
            put(to, up);
        }
        true
    }
}

/// A half float that is at least `norm`, and a little more for the rounding of its sum; `None` when it is not finite.
fn rounded_up(norm: f64) -> Option<f16> {
    // The second summand is for squares too small for a float.
    let norm = norm * (1.0 + 1e-5) + 1e-15;
    let mut half = f16::from_f64(norm);
    if half.to_f64() < norm {
        half = f16::from_bits(half.to_bits() + 1);
    }
    half.is_finite().then_some(half)
}

impl Coded {
    /// # Safety
    /// The machine has AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn encode_avx2(&mut self, wide: usize, values: &[f32]) {
        self.encode(wide, values);
    }

    /// Codes a row, the first `wide` blocks in 8 bits.
    #[inline(always)]
    fn encode(&mut self, wide: usize, values: &[f32]) {
        for (b, values) in values.chunks_exact(BLOCK).enumerate() {
            let values: &[f32; BLOCK] = values.try_into().expect("a block");
            let codes: &mut [i8; BLOCK] =
                (&mut self.codes[b * BLOCK..][..BLOCK]).try_into().expect("a block");
            let (scale, least, most) = if b < wide {
                (wide_scale(values), -127.0, 127.0)
            } else {
                (narrow_scale(values), -8.0, 7.0)
            };
            let half = f16::from_f32(scale);
            let scale = half.to_f32();
            let inverse = inverse(scale);
            let mut squares = [[0.0f32; 8]; 3];
            for i in 0..BLOCK {
                let code = (values[i] * inverse).round_ties_even().clamp(least, most);
                codes[i] = code as i8;
                let error = values[i] - scale * code;
                squares[0][i % 8] += error * error;
                squares[1][i % 8] += values[i] * values[i];
                squares[2][i % 8] += (scale * code) * (scale * code);
            }
            self.scales[b] = half;
            self.squares[b] = squares.map(|lanes| lanes.iter().sum());
        }
    }
}

/// 0 for what has no inverse worth having: all codes are 0 then.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    if scale.abs() > 1e-30 { 1.0 / scale } else { 0.0 }
}

#[inline(always)]
fn wide_scale(values: &[f32; BLOCK]) -> f32 {
    values.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0
}

/// The scale of least error among some that let the largest value, which takes the code -8, be cut off more or less.
#[inline(always)]
fn narrow_scale(values: &[f32; BLOCK]) -> f32 {
    const FACTORS: [f32; 5] = [1.0, 0.93, 0.87, 0.8, 0.74];
    let (mut most, mut least) = (0.0f32, 0.0f32);
    for &v in values {
        most = most.max(v);
        least = least.min(v);
    }
    let largest = if most > -least { most } else { least };
    let (mut best, mut best_error) = (largest / -8.0, f32::INFINITY);
    for factor in FACTORS {
        let scale = factor * largest / -8.0;
        let inverse = inverse(scale);
        let mut errors = [0.0f32; 8];
        for i in 0..BLOCK {
            let code = (values[i] * inverse).round_ties_even().clamp(-8.0, 7.0);
            let error = values[i] - scale * code;
            errors[i % 8] += error * error;
        }
        let error = errors.iter().sum();
        if error < best_error {
            (best, best_error) = (scale, error);
        }
    }
    best
}
