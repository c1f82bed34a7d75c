use proptest::prelude::*;

use super::super::levels::distortion;
use super::*;

const FORMATS: [KvFormat; 4] = [KvFormat::Tq8, KvFormat::Tq6, KvFormat::Tq5, KvFormat::Tq4];

fn round_trip(format: KvFormat, x: &[f32]) -> Vec<f32> {
    let mut codes = vec![0xa5; format.code_bytes(x.len())];
    let mut scales = vec![f32::NAN; format.scale_count(x.len())];
    encode(format, x, &mut codes, &mut scales).unwrap();
    let mut out = vec![0.0; x.len()];
    decode(format, &codes, &scales, &mut out);
    out
}

/// Squared error relative to the squared norm.
fn relative_error(x: &[f32], y: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let error: f64 = x.iter().zip(y).map(|(&x, &y)| square(f64::from(x) - f64::from(y))).sum();
    error / x.iter().map(|&x| square(f64::from(x))).sum::<f64>()
}

/// Standard normal numbers (Box-Muller over a linear congruential generator).
fn normals(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    (0..n)
        .map(|_| ((-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()) as f32)
        .collect()
}

#[test]
fn normal_vectors_reach_the_lloyd_max_error() {
    for format in FORMATS {
        for dim in [256, 512] {
            let n = 400;
            let error: f64 = (0..n)
                .map(|seed| {
                    let x = normals(seed, dim);
                    relative_error(&x, &round_trip(format, &x))
                })
                .sum::<f64>()
                / n as f64;
            let best = distortion(format.turbo_bits().unwrap());
            println!("{format} of {dim}: {error:.4e}, Lloyd-Max {best:.4e}, ratio {:.4}", error / best);
            assert!(error < 1.05 * best, "{format} of {dim}: {error:e}, Lloyd-Max {best:e}");
            assert!(error > 0.8 * best, "too good to be true: {format} of {dim}: {error:e}");
        }
    }
}

#[test]
fn adversarial_vectors_are_no_worse_than_one_and_a_half_times_that() {
    for format in FORMATS {
        let best = distortion(format.turbo_bits().unwrap());
        for dim in [64, 256, 512] {
            let mut vectors: Vec<(String, Vec<f32>)> = Vec::new();
            for at in [0, 1, 17, dim - 1] {
                let mut x = vec![0.0; dim];
                x[at] = -3.0;
                vectors.push((format!("one-hot {at}"), x.clone()));
                x[(at + 5) % dim] = 2.0;
                x[(at + 31) % dim] = 0.1;
                vectors.push((format!("sparse {at}"), x));
            }
            vectors.push(("constant".into(), vec![0.7; dim]));
            vectors.push(("alternating".into(), (0..dim).map(|i| [1.0, -1.0][i % 2]).collect()));
            vectors.push(("ramp".into(), (0..dim).map(|i| i as f32).collect()));
            vectors.push(("geometric".into(), (0..dim).map(|i| 0.9f32.powi(i as i32)).collect()));
            let mut outlier = normals(9, dim);
            outlier[3] = 200.0;
            vectors.push(("outlier".into(), outlier));
            // The worst case of a rotation: a vector along one of its rows.
            let mut x = vec![0.0; dim];
            x[7] = 1.0;
            rotation::unrotate(&mut x);
            let along = relative_error(&x, &round_trip(format, &x));
            println!("{format} of {dim}: along a row of the transform {along:.3e}");
            for (name, x) in vectors {
                let error = relative_error(&x, &round_trip(format, &x));
                assert!(error < 1.5 * best, "{format}, {name} of {dim}: {error:e}, Lloyd-Max {best:e}");
            }
        }
    }
}

#[test]
fn zero_and_huge_and_tiny_vectors_stay_in_range() {
    for format in FORMATS {
        let best = distortion(format.turbo_bits().unwrap());
        assert!(round_trip(format, &[0.0; 256]).iter().all(|&x| x == 0.0));
        assert!(round_trip(format, &[1e-14; 256]).iter().all(|x| x.abs() < 1e-12));
        for scale in [1e-6, 1e3, 1e20, 1e37] {
            let x: Vec<f32> = normals(4, 256).iter().map(|x| x * scale).collect();
            let error = relative_error(&x, &round_trip(format, &x));
            assert!(error < 1.5 * best, "{format} at {scale:e}: {error:e}");
        }
        assert!(round_trip(format, &[f32::MAX / 64.0; 512]).iter().all(|x| x.is_finite()));
    }
}

#[test]
fn what_is_not_finite_is_refused() {
    for format in FORMATS {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 100, 255] {
                let mut x = normals(1, 256);
                x[at] = bad;
                let mut codes = vec![0; format.code_bytes(256)];
                let mut scales = vec![0.0; format.scale_count(256)];
                assert_eq!(encode(format, &x, &mut codes, &mut scales), Err(NotFinite));
            }
        }
    }
}

#[test]
fn sizes_are_packed() {
    let bytes = |dim| FORMATS.map(|f| f.vector_bytes(dim));
    assert_eq!(bytes(256), [264, 200, 164, 132]);
    assert_eq!(bytes(512), [528, 400, 328, 264]);
    assert_eq!(bytes(16), [40, 32, 24, 20]);
}

proptest! {
    /// Any finite vector comes back with a bounded error, and codes alone decide: decoding twice is the same.
    #[test]
    fn any_finite_vector_survives(
        format in proptest::sample::select(FORMATS.to_vec()),
        dim in proptest::sample::select(vec![16usize, 32, 64, 96, 128, 160, 256, 512]),
        seed in any::<u64>(),
        exponent in -30i32..30,
        sparsity in 1usize..40,
    ) {
        let mut x = normals(seed, dim);
        x.iter_mut().enumerate().for_each(|(i, x)| {
            *x = if (i as u64).wrapping_mul(seed | 1).is_multiple_of(sparsity as u64) { *x * 10f32.powi(exponent) } else { 0.0 }
        });
        let y = round_trip(format, &x);
        let norm: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        let error: f64 = x.iter().zip(&y).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum::<f64>().sqrt();
        // A single step at the end of a block's range is the worst there is: far below a third of the norm.
        prop_assert!(error <= 0.34 * norm + 1e-9, "{format} of {dim}: {error} of {norm}");
    }
}
