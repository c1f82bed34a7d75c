//! The bounds against exact products, and the best rows against the whole product.

use lapidary_backend::MatrixData;
use lapidary_gguf::SharedBytes;

use super::*;
use crate::linear::isa::Isa;
use crate::linear::tests::Random;
use crate::linear::{self, ActivationMode};

const TYPES: [GgmlType; 7] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q4_0,
    GgmlType::Q5_0,
    GgmlType::Q6_K,
    GgmlType::Q8_0,
];
const MODES: [ActivationMode; 2] = [ActivationMode::Q8, ActivationMode::F32];

fn matrix(ty: GgmlType, rows: usize, cols: usize, bytes: Vec<u8>) -> CpuMatrix {
    let bytes = SharedBytes::from(bytes);
    CpuMatrix::new(MatrixData { name: "output".into(), ty, rows, cols, stack: 1, bytes }).unwrap()
}

/// Activations with most of their energy in few columns, as a model's are, and the squares that tell where.
fn activations(random: &mut Random, cols: usize) -> (Vec<f32>, Vec<f32>) {
    let x: Vec<f32> = (0..cols).map(|_| random.unit().powi(5) * 8.0).collect();
    let importance = x.iter().map(|v| v * v).collect();
    (x, importance)
}

fn whole(linear: &Linear, matrix: &CpuMatrix, x: &[f32], softcap: Option<f32>) -> Vec<f32> {
    let (rows, cols) = (matrix.data().rows, matrix.data().cols);
    let mut out = vec![f32::NAN; rows];
    let product = Product { weights: matrix.weights(0), out_col: 0, rows: RowMap::Identity(1) };
    let input = Input { x, n_rows: 1, cols };
    linear.run(&[product], input, Output { data: &mut out, stride: rows }, &mut linear::Workspace::default());
    if let Some(cap) = softcap {
        linear.isa.run(Softcap { x: &mut out, cap });
    }
    out
}

/// Rows by value, the lower one first among equals.
fn ranked(values: impl Iterator<Item = (u32, f32)>, k: usize) -> Vec<(u32, u32)> {
    let mut pairs: Vec<(u32, f32)> = values.collect();
    pairs.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    pairs.into_iter().take(k).map(|(id, value)| (id, value.to_bits())).collect()
}

#[test]
fn no_product_exceeds_its_bound() {
    let pool = Pool::new(2);
    let mut random = Random(1);
    for ty in TYPES {
        for cols in [128, 640, 768, 2816].into_iter().filter(|cols| cols % ty.block_len() == 0) {
            let rows = 521;
            let matrix = matrix(ty, rows, cols, random.weights(ty, rows, cols));
            let (x, importance) = activations(&mut random, cols);
            // Also with columns in an order that has nothing to do with the activations.
            for importance in [&importance[..], &[]] {
                for isa in Isa::available() {
                    let screen = Screen::new(&pool, isa.level(), &matrix, importance).unwrap();
                    for mode in MODES {
                        let linear = Linear { pool: &pool, isa, mode };
                        let mut workspace = Workspace::default();
                        assert!(linear.seen_by(ty, &x, &mut workspace.exact, &mut workspace.linear));
                        workspace.query.prepare(&screen.layout, &workspace.exact).unwrap();
                        screen.bounds(&linear, &mut workspace);
                        let exact = whole(&linear, &matrix, &x, None);
                        for (row, (&bound, &product)) in workspace.bounds.iter().zip(&exact).enumerate() {
                            assert!(bound >= product, "{ty} {isa} {mode:?} row {row}: {bound} < {product}");
                        }
                        assert_eq!(workspace.bounds[rows..], [f32::NEG_INFINITY; 7]);
                    }
                }
            }
        }
    }
}

#[test]
fn every_kernel_gives_the_bits_of_the_scalar_twin() {
    let pool = Pool::new(1);
    let mut random = Random(2);
    let (rows, cols) = (77, 640);
    let matrix = matrix(GgmlType::Q8_0, rows, cols, random.weights(GgmlType::Q8_0, rows, cols));
    let (x, importance) = activations(&mut random, cols);
    let run = |isa: Isa| {
        let screen = Screen::new(&pool, isa.level(), &matrix, &importance).unwrap();
        let linear = Linear { pool: &pool, isa, mode: ActivationMode::Q8 };
        let mut workspace = Workspace { exact: x.clone(), ..Workspace::default() };
        workspace.query.prepare(&screen.layout, &x).unwrap();
        screen.bounds(&linear, &mut workspace);
        let tiles = bytemuck::cast_slice::<Line, u8>(&screen.tiles).to_vec();
        (tiles, workspace.bounds.iter().map(|b| b.to_bits()).collect::<Vec<_>>())
    };
    let expected = run(Isa::PORTABLE);
    for isa in Isa::available() {
        assert!(run(isa) == expected, "{isa}");
    }
}

#[test]
fn the_best_rows_are_those_of_the_whole_product_bit_for_bit() {
    let pool = Pool::new(2);
    let mut random = Random(3);
    let (rows, cols) = (4099, 768);
    for ty in TYPES {
        let mut bytes = random.weights(ty, rows, cols);
        // Every row twice at least: ties everywhere.
        let half = bytes.len() / rows * 2000;
        bytes.copy_within(..half, half);
        let matrix = matrix(ty, rows, cols, bytes);
        for mode in MODES {
            let linear = Linear { pool: &pool, isa: Isa::detect(), mode };
            let mut screened = 0;
            for _ in 0..8 {
                let (x, importance) = activations(&mut random, cols);
                let screen = Screen::new(&pool, linear.isa.level(), &matrix, &importance).unwrap();
                for (k, softcap) in [(1, None), (3, Some(2.0)), (20, None), (64, Some(30.0))] {
                    let mut workspace = Workspace::default();
                    let Some(best) = screen.best(&linear, &matrix, &x, k, softcap, &mut workspace) else {
                        continue;
                    };
                    screened += 1;
                    assert!(best.ids.is_sorted_by(|a, b| a < b));
                    let all = whole(&linear, &matrix, &x, softcap);
                    let expected = ranked((0..).zip(all), k);
                    let found = ranked(best.ids.into_iter().zip(best.values), k);
                    assert_eq!(found, expected, "{ty} {mode:?} k {k}");
                }
            }
            assert!(screened > 0, "{ty} {mode:?}: the bounds never sufficed");
        }
    }
}

#[test]
fn equal_after_the_softcap_counts_as_equal() {
    let pool = Pool::new(1);
    let (rows, cols) = (2048, 128);
    // Products so large that the softcap makes them all its limit.
    let weights: Vec<f32> = (0..rows).flat_map(|row| vec![1.0 + row as f32 / 4096.0; cols]).collect();
    let matrix = matrix(GgmlType::F32, rows, cols, bytemuck::cast_slice(&weights).to_vec());
    let linear = Linear { pool: &pool, isa: Isa::detect(), mode: ActivationMode::F32 };
    let screen = Screen::new(&pool, linear.isa.level(), &matrix, &[]).unwrap();
    let x = vec![10.0; cols];
    if let Some(best) = screen.best(&linear, &matrix, &x, 1, Some(30.0), &mut Workspace::default()) {
        let expected = ranked((0..).zip(whole(&linear, &matrix, &x, Some(30.0))), 1);
        assert_eq!(ranked(best.ids.into_iter().zip(best.values), 1), expected);
    }
}

#[test]
fn what_is_not_finite_is_left_to_the_whole_product() {
    let pool = Pool::new(1);
    let mut random = Random(4);
    let (rows, cols) = (1024, 128);
    let bytes = random.weights(GgmlType::F32, rows, cols);
    let (x, importance) = activations(&mut random, cols);
    let linear = Linear { pool: &pool, isa: Isa::detect(), mode: ActivationMode::F32 };
    let good = matrix(GgmlType::F32, rows, cols, bytes.clone());
    let screen = Screen::new(&pool, linear.isa.level(), &good, &importance).unwrap();
    let best = |x: &[f32]| screen.best(&linear, &good, x, 1, None, &mut Workspace::default());
    assert!(best(&x).is_some());
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        let mut x = x.clone();
        x[17] = bad;
        assert!(best(&x).is_none(), "{bad}");
        let mut bytes = bytes.clone();
        bytes[4000..4004].copy_from_slice(&bad.to_le_bytes());
        let bad_matrix = matrix(GgmlType::F32, rows, cols, bytes);
        assert!(Screen::new(&pool, linear.isa.level(), &bad_matrix, &importance).is_none(), "{bad}");
    }
    assert!(best(&vec![0.0; cols]).is_none());
    assert!(screen.best(&linear, &good, &x, 0, None, &mut Workspace::default()).is_none());
    assert!(screen.best(&linear, &good, &x, rows, None, &mut Workspace::default()).is_none());
}

#[test]
fn types_with_minimums_and_odd_shapes_have_no_copy() {
    let mut random = Random(5);
    let bytes_for = |ty: GgmlType, rows, cols, bytes| Screen::bytes_for(&matrix(ty, rows, cols, bytes));
    let q4_k = random.weights(GgmlType::Q4_K, 8, 256);
    assert_eq!(bytes_for(GgmlType::Q4_K, 8, 256, q4_k), None);
    assert_eq!(bytes_for(GgmlType::F32, 8, 100, vec![0; 3200]), None);
    assert_eq!(bytes_for(GgmlType::F32, 8, 96, vec![0; 3072]), None);
    assert!(bytes_for(GgmlType::F32, 8, 128, vec![0; 4096]).is_some());
}
