use super::*;

/// Sums of sixteen vectors by each of the three reductions.
struct Sums<'a>(&'a [[Chunk; 4]; 4]);

impl Kernel for Sums<'_> {
    type Output = [[[f32; 4]; 4]; 3];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let v = self.0.each_ref().map(|row| row.each_ref().map(|c| s.load(c)));
        [v.map(|row| row.map(|v| s.sum(v))), v.map(|row| s.sum4(row)), s.sum4x4(v)]
    }
}

#[test]
fn all_reductions_fold_in_halves() {
    let mut v = [[[0.0f32; LANES]; 4]; 4];
    let mut state = 1u32;
    for x in v.as_flattened_mut().as_flattened_mut() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *x = (state >> 8) as f32 / 1e5 - 80.0;
    }
    let folded = |c: Chunk| {
        let at = |i: usize| (c[i] + c[i + 8]) + (c[i + 4] + c[i + 12]);
        (at(0) + at(2)) + (at(1) + at(3))
    };
    let expected = v.map(|row| row.map(folded));
    for isa in Isa::available() {
        for (i, found) in isa.run(Sums(&v)).into_iter().enumerate() {
            assert_eq!(found, expected, "{isa}, reduction {i}");
        }
    }
}
