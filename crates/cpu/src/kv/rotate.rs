//! The rotation of the TurboQuant formats on sixteen lanes. Elements and order of operations are those of
//! [`lapidary_backend::kv::rotation`].

use lapidary_backend::kv::rotation::{part_dim, part_scale, signs};

use crate::simd::{Chunk, Kernel, LANES, Simd};

/// The signs of chunk `i` of a head.
#[inline(always)]
pub(crate) fn chunk_signs(i: usize) -> &'static Chunk {
    &signs().as_chunks().0[i]
}

/// Rotates a vector in place.
pub(crate) struct Rotate<'a>(pub(crate) &'a mut [Chunk]);

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (i, x) in self.0.iter_mut().enumerate() {
            s.store(s.mul(s.load(x), s.load(chunk_signs(i))), x);
        }
        transform(s, self.0);
    }
}

/// Undoes a rotation in place.
#[inline(always)]
pub(crate) fn unrotate<S: Simd>(s: S, x: &mut [Chunk]) {
    transform(s, x);
    for (i, x) in x.iter_mut().enumerate() {
        s.store(s.mul(s.load(x), s.load(chunk_signs(i))), x);
    }
}

/// The Walsh-Hadamard transform of each part.
#[inline(always)]
pub(super) fn transform<S: Simd>(s: S, x: &mut [Chunk]) {
    let dim = x.len() * LANES;
    let scale = s.splat(part_scale(dim));
    for x in &mut *x {
        let v = s.mul(s.load(x), scale);
        let v = within::<S, 1>(s, v);
        let v = within::<S, 2>(s, v);
        let v = within::<S, 4>(s, v);
        s.store(within::<S, 8>(s, v), x);
    }
    for part in x.chunks_exact_mut(part_dim(dim) / LANES) {
        let mut h = 1;
        while h < part.len() {
            for pair in part.chunks_exact_mut(2 * h) {
                let (low, high) = pair.split_at_mut(h);
                for (low, high) in low.iter_mut().zip(high) {
                    let (a, b) = (s.load(low), s.load(high));
                    s.store(s.add(a, b), low);
                    s.store(s.sub(a, b), high);
                }
            }
            h *= 2;
        }
    }
}

/// Sums and differences of lanes `D` apart.
#[inline(always)]
fn within<S: Simd, const D: usize>(s: S, v: S::F) -> S::F {
    const SIGNS: [Chunk; 4] = {
        let mut signs = [[1.0; LANES]; 4];
        let mut i = 0;
        while i < 4 * LANES {
            if (i % LANES) >> (i / LANES) & 1 == 1 {
                signs[i / LANES][i % LANES] = -1.0;
            }
            i += 1;
        }
        signs
    };
    // The product with a sign is exact: one rounding, that of the sum.
    s.mul_add(v, s.load(&SIGNS[D.trailing_zeros() as usize]), s.exchange::<D>(v))
}
