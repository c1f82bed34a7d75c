//! Sixteen lanes in plain Rust: what the compiler vectorises where no hand-written set exists.

use half::f16;

use super::{Chunk, LANES, Simd};

/// The token of plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Portable;

#[inline(always)]
fn zip(a: Chunk, b: Chunk, f: impl Fn(f32, f32) -> f32) -> Chunk {
    let mut out = [0.0; LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

impl Simd for Portable {
    type F = Chunk;

    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Chunk {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, from: &Chunk) -> Chunk {
        *from
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> Chunk {
        from.map(f16::to_f32)
    }

    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> Chunk {
        from.map(f32::from)
    }

    #[inline(always)]
    fn load_i6(self, low: &[u8; LANES], high: &[u8; LANES / 2]) -> [Chunk; 2] {
        let code =
            |i: usize| (low[i % LANES] >> (4 * (i / LANES)) & 15) | (high[i % 8] >> (2 * (i / 8)) & 3) << 4;
        [0, LANES].map(|first| std::array::from_fn(|i| f32::from(code(first + i) as i8 - 32)))
    }

    #[inline(always)]
    fn nibble_levels(self, codes: &[u8; LANES], table: &Chunk) -> [Chunk; 2] {
        [codes.map(|c| table[usize::from(c & 15)]), codes.map(|c| table[usize::from(c >> 4)])]
    }

    #[inline(always)]
    fn negate_where(self, bits: u16, v: Chunk) -> Chunk {
        std::array::from_fn(|i| if bits >> i & 1 == 1 { -v[i] } else { v[i] })
    }

    #[inline(always)]
    fn exchange<const D: usize>(self, v: Chunk) -> Chunk {
        std::array::from_fn(|i| v[i ^ D])
    }

    #[inline(always)]
    fn store(self, v: Chunk, to: &mut Chunk) {
        *to = v;
    }

    #[inline(always)]
    fn add(self, a: Chunk, b: Chunk) -> Chunk {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Chunk, b: Chunk) -> Chunk {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Chunk, b: Chunk) -> Chunk {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Chunk, b: Chunk) -> Chunk {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, a: Chunk, b: Chunk, c: Chunk) -> Chunk {
        let mut out = c;
        for i in 0..LANES {
            out[i] = a[i].mul_add(b[i], c[i]);
        }
        out
    }

    #[inline(always)]
    fn max(self, a: Chunk, b: Chunk) -> Chunk {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Chunk, b: Chunk) -> Chunk {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn select_less(self, a: Chunk, b: Chunk, yes: Chunk, no: Chunk) -> Chunk {
        let mut out = no;
        for i in 0..LANES {
            if a[i] < b[i] {
                out[i] = yes[i];
            }
        }
        out
    }

    #[inline(always)]
    fn exp2_of_low_bits(self, v: Chunk) -> Chunk {
        v.map(|x| f32::from_bits((x.to_bits() << 23).wrapping_add(0x3f80_0000)))
    }

    #[inline(always)]
    fn copy_sign(self, a: Chunk, sign: Chunk) -> Chunk {
        zip(a, sign, f32::copysign)
    }

    #[inline(always)]
    fn abs(self, a: Chunk) -> Chunk {
        a.map(f32::abs)
    }

    #[inline(always)]
    fn sum(self, mut v: Chunk) -> f32 {
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                v[i] += v[i + width];
            }
            width /= 2;
        }
        v[0]
    }

    #[inline(always)]
    fn max_lane(self, mut v: Chunk) -> f32 {
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                v[i] = if v[i] > v[i + width] { v[i] } else { v[i + width] };
            }
            width /= 2;
        }
        v[0]
    }

    #[inline(always)]
    fn sum4(self, v: [Chunk; 4]) -> [f32; 4] {
        v.map(|v| self.sum(v))
    }

    #[inline(always)]
    fn sum4x4(self, v: [[Chunk; 4]; 4]) -> [[f32; 4]; 4] {
        v.map(|v| self.sum4(v))
    }
}
