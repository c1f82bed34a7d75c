//! The bounds in plain Rust: the statement of what the other kernels compute.

use half::f16;

use super::Query;
use super::layout::{BLOCK, Layout, NARROW_BYTES, NUMBERS, TILE, WIDE_BYTES};

/// An upper bound of the product of each row of `tiles`.
pub(super) fn bounds(layout: &Layout, query: &Query, tiles: &[u8], out: &mut [f32]) {
    for (tile, out) in tiles.chunks_exact(layout.tile_bytes()).zip(out.chunks_exact_mut(TILE)) {
        for (lane, out) in out.iter_mut().enumerate() {
            *out = bound(layout, query, tile, lane);
        }
    }
}

fn bound(layout: &Layout, query: &Query, tile: &[u8], lane: usize) -> f32 {
    let number = |bytes: &[u8]| f16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]]).to_f32();
    let n_blocks = query.scales.len();
    let (wide, rest) = tile.split_at(layout.wide * WIDE_BYTES);
    let (narrow, norms) = rest.split_at((n_blocks - layout.wide) * NARROW_BYTES);
    let mut sum = 0.0f32;
    for (b, block) in wide.chunks_exact(WIDE_BYTES).enumerate() {
        let x = &query.codes[b * BLOCK..][..BLOCK];
        let code = |i: usize| i32::from(block[TILE * (i & !3) + 4 * lane + i % 4] as i8);
        let product: i32 = (0..BLOCK).map(|i| code(i) * i32::from(x[i])).sum();
        sum = (product as f32).mul_add(number(&block[TILE * BLOCK..]) * query.scales[b], sum);
    }
    for (block, b) in narrow.chunks_exact(NARROW_BYTES).zip(layout.wide..) {
        let x = &query.codes[b * BLOCK..][..BLOCK];
        let code = |i: usize| {
            let byte = block[TILE * ((i % 16) & !3) + 4 * lane + i % 4];
            i32::from(if i < 16 { byte & 15 } else { byte >> 4 })
        };
        let product: i32 = (0..BLOCK).map(|i| code(i) * i32::from(x[i])).sum();
        let product = product - query.offsets[b];
        sum = (product as f32).mul_add(number(&block[TILE * BLOCK / 2..]) * query.scales[b], sum);
    }
    let factors = query.segments.iter().chain(&query.parts);
    for (norm, &factor) in norms.chunks_exact(NUMBERS).zip(factors) {
        sum = number(norm).mul_add(factor, sum);
    }
    sum
}
