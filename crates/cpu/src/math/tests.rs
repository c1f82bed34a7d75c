use super::*;
use crate::linear::isa::Isa;
use crate::simd::{Chunk, Kernel};

#[derive(Clone, Copy)]
enum Function {
    Exp,
    Tanh,
    Gelu,
}

struct Map<'a> {
    f: Function,
    x: &'a [Chunk],
    out: &'a mut [Chunk],
}

impl Kernel for Map<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, out) in self.x.iter().zip(self.out) {
            let x = s.load(x);
            let y = match self.f {
                Function::Exp => exp(s, x),
                Function::Tanh => tanh(s, x),
                Function::Gelu => gelu_tanh(s, x),
            };
            s.store(y, out);
        }
    }
}

fn map(isa: Isa, f: Function, x: &[f32]) -> Vec<f32> {
    let x = x.as_chunks::<LANES>().0;
    let mut out = vec![[0.0; LANES]; x.len()];
    isa.run(Map { f, x, out: &mut out });
    out.as_flattened().to_vec()
}

/// Every 4096th float between the bounds, both signs, filled up to whole chunks.
fn floats(min: f32, max: f32) -> Vec<f32> {
    let steps = (min.to_bits()..max.to_bits()).step_by(1 << 11);
    let mut all: Vec<f32> = steps.map(f32::from_bits).flat_map(|x| [x, -x]).collect();
    all.resize(all.len().next_multiple_of(LANES), 0.0);
    all
}

fn worst(isa: Isa, f: Function, x: &[f32], exact: impl Fn(f64) -> f64) -> f64 {
    let y = map(isa, f, x);
    x.iter()
        .zip(y)
        .map(|(&x, y)| {
            let e = exact(f64::from(x));
            if e == 0.0 { f64::from(y).abs() } else { (f64::from(y) / e - 1.0).abs() }
        })
        .fold(0.0, f64::max)
}

fn exact_gelu(x: f64) -> f64 {
    x / (1.0 + (-2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).exp())
}

#[test]
fn exp_has_the_stated_error() {
    let error = worst(Isa::detect(), Function::Exp, &floats(1e-8, 87.33), f64::exp);
    assert!(error < 1.2e-7, "{error:e}");
}

#[test]
fn tanh_has_the_stated_error() {
    let error = worst(Isa::detect(), Function::Tanh, &floats(1e-8, 50.0), f64::tanh);
    assert!(error < 2.5e-7, "{error:e}");
}

#[test]
fn gelu_has_the_stated_error() {
    // Further down the negative side the result is below 1e-12 and its relative error grows with the argument
    // of exp.
    let error = worst(Isa::detect(), Function::Gelu, &floats(1e-8, 5.0), exact_gelu);
    assert!(error < 4e-6, "{error:e}");
    let x = floats(1e-8, 100.0);
    let y = map(Isa::detect(), Function::Gelu, &x);
    for (x, y) in x.into_iter().zip(y) {
        let error = (f64::from(y) - exact_gelu(f64::from(x))).abs();
        assert!(error <= 2e-7 * f64::from(x.abs()), "{x}: {error:e}");
    }
}

#[test]
fn extremes_end_in_the_right_places() {
    let inf = f32::INFINITY;
    let x = [
        0.0,
        -0.0,
        inf,
        -inf,
        f32::NAN,
        88.0,
        89.5,
        -87.0,
        -88.0,
        1e30,
        -1e30,
        1e-40,
        -1e-40,
        1.0,
        0.7,
        -0.7,
    ];
    for isa in Isa::available() {
        let e = map(isa, Function::Exp, &x);
        assert_eq!(&e[..4], &[1.0, 1.0, inf, 0.0]);
        assert!(e[4].is_nan());
        assert!(e[5].is_finite() && e[6] == inf && e[7] > 0.0 && e[8] == 0.0 && e[9] == inf && e[10] == 0.0);
        let t = map(isa, Function::Tanh, &x);
        assert_eq!(&t[..4], &[0.0, -0.0, 1.0, -1.0]);
        assert!(t[4].is_nan() && t[1].is_sign_negative());
        let g = map(isa, Function::Gelu, &x);
        assert!(g[2] == inf && g[9] == 1e30 && g[10] == 0.0 && g[4].is_nan());
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let bits = |v: Vec<f32>| v.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let x = floats(1e-38, 3e38);
    for f in [Function::Exp, Function::Tanh, Function::Gelu] {
        let portable = bits(map(Isa::PORTABLE, f, &x));
        for isa in Isa::available() {
            assert!(bits(map(isa, f, &x)) == portable, "{isa}");
        }
    }
}
