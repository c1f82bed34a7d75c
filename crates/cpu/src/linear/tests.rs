//! Every kernel against its scalar twin, and the twin against the definition.

use lapidary_gguf::{GgmlType, block};

use super::*;

/// A small reproducible generator (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number in -1..1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn activations(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit() * 4.0).collect()
    }

    /// Random bytes of a matrix whose scales are moderate numbers.
    pub(crate) fn weights(&mut self, ty: GgmlType, rows: usize, cols: usize) -> Vec<u8> {
        let n = ty.row_bytes(cols).unwrap() * rows;
        match ty {
            GgmlType::F32 => (0..n / 4).flat_map(|_| self.unit().to_le_bytes()).collect(),
            GgmlType::F16 => {
                (0..n / 2).flat_map(|_| half::f16::from_f32(self.unit()).to_le_bytes()).collect()
            }
            GgmlType::BF16 => {
                (0..n / 2).flat_map(|_| half::bf16::from_f32(self.unit()).to_le_bytes()).collect()
            }
            _ => {
                let mut bytes: Vec<u8> = (0..n).map(|_| self.next() as u8).collect();
                for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                    self.set_scales(ty, block);
                }
                bytes
            }
        }
    }

    fn set_scales(&mut self, ty: GgmlType, block: &mut [u8]) {
        if ty == GgmlType::MXFP4 {
            block[0] = 120 + (self.next() % 9) as u8;
        }
        for &at in half_offsets(ty) {
            let scale = half::f16::from_f32(self.unit() * 0.02);
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
}

/// Where a block stores half-precision scales.
fn half_offsets(ty: GgmlType) -> &'static [usize] {
    match ty {
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => &[0, 2],
        GgmlType::Q2_K => &[80, 82],
        GgmlType::Q3_K => &[108],
        GgmlType::Q6_K => &[208],
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 | GgmlType::MXFP4 => &[],
        _ => &[0],
    }
}

fn multiply(isa: Isa, mode: ActivationMode, w: WeightMatrix, x: &[f32], pool: &Pool) -> Vec<f32> {
    let n_rows = x.len() / w.cols();
    let mut out = vec![f32::NAN; n_rows * w.rows()];
    let product = Product { weights: w, out_col: 0, rows: RowMap::Identity(n_rows) };
    Linear { pool, isa, mode }.run(
        &[product],
        Input { x, n_rows, cols: w.cols() },
        Output { data: &mut out, stride: w.rows() },
        &mut Workspace::default(),
    );
    out
}

/// The bits, with all NaNs alike: which NaN an operation gives is not defined.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

/// Columns that make sense for a type: off the tile, odd for float types.
fn columns(ty: GgmlType) -> &'static [usize] {
    match ty.block_len() {
        1 => &[1, 15, 16, 37, 640],
        32 => &[32, 96, 640, 704, 2112],
        _ => &[256, 768, 2816],
    }
}

const MODES: [ActivationMode; 2] = [ActivationMode::Q8, ActivationMode::F32];

#[test]
fn every_kernel_gives_the_bits_of_the_scalar_twin() {
    let pool = Pool::new(2);
    let mut random = Random(1);
    for ty in GgmlType::ALL {
        for (i, &cols) in columns(ty).iter().enumerate() {
            let n_weights = [1, 7, 33, 70][i % 4];
            let weights = random.weights(ty, n_weights, cols);
            let w = WeightMatrix::new(ty, n_weights, cols, &weights).unwrap();
            for n_rows in [1, 2, 3, 5, 8, 9, 33, 64] {
                let x = random.activations(n_rows * cols);
                for mode in MODES {
                    let expected = bits(&multiply(Isa::PORTABLE, mode, w, &x, &pool));
                    for isa in Isa::available() {
                        let found = bits(&multiply(isa, mode, w, &x, &pool));
                        assert_eq!(found, expected, "{ty} {isa} {mode:?}: {n_rows} x {cols} x {n_weights}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_alone_gives_the_bits_it_gives_in_a_batch() {
    let mut random = Random(2);
    for ty in GgmlType::ALL {
        let (n_weights, cols) = (45, 768);
        let weights = random.weights(ty, n_weights, cols);
        let w = WeightMatrix::new(ty, n_weights, cols, &weights).unwrap();
        let x = random.activations(19 * cols);
        for isa in Isa::available() {
            for mode in MODES {
                let together = bits(&multiply(isa, mode, w, &x, &Pool::new(3)));
                for (r, x) in x.chunks_exact(cols).enumerate() {
                    let alone = bits(&multiply(isa, mode, w, x, &Pool::new(1)));
                    assert_eq!(alone, together[r * n_weights..][..n_weights], "{ty} {isa} {mode:?} row {r}");
                }
            }
        }
    }
}

/// The product by its definition, and the sum of the magnitudes of its terms.
fn by_definition(w: WeightMatrix, row: usize, x: &[f32]) -> (f64, f64) {
    let mut decoded = vec![0.0; w.cols()];
    block::dequantize(w.ty(), w.row(row), &mut decoded).unwrap();
    let terms = decoded.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
    terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()))
}

#[test]
fn float_activations_agree_with_the_decoded_weights() {
    let mut random = Random(3);
    for ty in GgmlType::ALL {
        let (n_weights, cols) = (9, 2816);
        let weights = random.weights(ty, n_weights, cols);
        let w = WeightMatrix::new(ty, n_weights, cols, &weights).unwrap();
        let x = random.activations(cols);
        let found = multiply(Isa::PORTABLE, ActivationMode::F32, w, &x, &Pool::new(1));
        for (row, found) in found.into_iter().enumerate() {
            let (expected, size) = by_definition(w, row, &x);
            // 2816 / 16 additions in a lane and 4 to fold them, each off by half a unit in the last place.
            let bound = size * (2816.0 / 16.0 + 4.0) * f64::from(f32::EPSILON) / 2.0;
            assert!((f64::from(found) - expected).abs() <= bound, "{ty}: {found} for {expected}");
        }
    }
}

#[test]
fn rounded_activations_are_off_by_their_rounding_only() {
    let mut random = Random(4);
    for ty in GgmlType::ALL.into_iter().filter(|ty| !ty.is_float()) {
        let (n_weights, cols) = (9, 2816);
        let weights = random.weights(ty, n_weights, cols);
        let w = WeightMatrix::new(ty, n_weights, cols, &weights).unwrap();
        let x = random.activations(cols);
        let found = multiply(Isa::PORTABLE, ActivationMode::Q8, w, &x, &Pool::new(1));
        let mut decoded = vec![0.0; cols];
        for (row, found) in found.into_iter().enumerate() {
            let (expected, size) = by_definition(w, row, &x);
            block::dequantize(ty, w.row(row), &mut decoded).unwrap();
            // Each activation is off by at most half a step of its block, where a step is amax / 127.
            let blocks = x.chunks(ty.block_len()).zip(decoded.chunks(ty.block_len()));
            let rounding: f64 = blocks
                .map(|(x, w)| {
                    let step = f64::from(x.iter().fold(0.0f32, |m, x| m.max(x.abs()))) / 127.0;
                    step / 2.0 * w.iter().map(|w| f64::from(w.abs())).sum::<f64>()
                })
                .sum();
            // The minimums are added apart from the codes, so their sizes add up instead of cancelling.
            let bound = rounding + (size + rounding) * 1e-4;
            let error = (f64::from(found) - expected).abs();
            assert!(error <= bound, "{ty}: {found} for {expected}, bound {bound}");
            // The bound is a worst case; roundings of random numbers cancel to a small part of it.
            assert!(error <= rounding * 0.2 + size * 1e-4, "{ty}: {found} for {expected}, bound {bound}");
        }
    }
}

#[test]
fn extreme_codes_do_not_saturate() {
    let pool = Pool::new(1);
    let fills: [fn(usize) -> u8; 5] = [|_| 0x00, |_| 0xff, |_| 0x80, |_| 0x7f, |i| (i % 2 * 255) as u8];
    for ty in GgmlType::ALL.into_iter().filter(|ty| !ty.is_float()) {
        let (n_weights, cols) = (33, 512);
        for fill in fills {
            let mut weights: Vec<u8> =
                (0..ty.row_bytes(cols).unwrap() * n_weights).map(|i| fill(i % ty.block_bytes())).collect();
            for block in weights.chunks_exact_mut(ty.block_bytes()) {
                Random(5).set_scales(ty, block);
            }
            let w = WeightMatrix::new(ty, n_weights, cols, &weights).unwrap();
            for sign in
                [|_: usize| 1.0f32, |_: usize| -1.0, |i: usize| if i.is_multiple_of(2) { 1.0 } else { -1.0 }]
            {
                let x: Vec<f32> = (0..7 * cols).map(|i| sign(i) * 127.0).collect();
                let expected = bits(&multiply(Isa::PORTABLE, ActivationMode::Q8, w, &x, &pool));
                for isa in Isa::available() {
                    let all = bits(&multiply(isa, ActivationMode::Q8, w, &x, &pool));
                    let one = bits(&multiply(isa, ActivationMode::Q8, w, &x[..cols], &pool));
                    assert_eq!(all, expected, "{ty} {isa}");
                    assert_eq!(one, expected[..n_weights], "{ty} {isa}");
                }
            }
        }
    }
}

#[test]
fn arbitrary_bytes_give_the_same_bits_everywhere() {
    let pool = Pool::new(1);
    let mut random = Random(6);
    for ty in GgmlType::ALL {
        let (n_weights, cols) = (35, 512);
        let n = ty.row_bytes(cols).unwrap() * n_weights;
        let weights: Vec<u8> = (0..n).map(|_| random.next() as u8).collect();
        let w = WeightMatrix::new(ty, n_weights, cols, &weights).unwrap();
        let x = random.activations(3 * cols);
        for mode in MODES {
            let expected = bits(&multiply(Isa::PORTABLE, mode, w, &x, &pool));
            for isa in Isa::available() {
                assert_eq!(bits(&multiply(isa, mode, w, &x, &pool)), expected, "{ty} {isa} {mode:?}");
            }
        }
    }
}

#[test]
fn a_broken_activation_spoils_its_own_row_only() {
    let mut random = Random(7);
    for ty in GgmlType::ALL {
        let (n_weights, cols) = (9, 512);
        let weights = random.weights(ty, n_weights, cols);
        let w = WeightMatrix::new(ty, n_weights, cols, &weights).unwrap();
        let clean = random.activations(5 * cols);
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = clean.clone();
            x[2 * cols + 77] = broken;
            for isa in Isa::available() {
                for mode in MODES {
                    let expected = multiply(isa, mode, w, &clean, &Pool::new(1));
                    let found = multiply(isa, mode, w, &x, &Pool::new(1));
                    let row = 2 * n_weights..3 * n_weights;
                    assert!(found[row.clone()].iter().all(|v| !v.is_finite()), "{ty} {isa} {mode:?}");
                    assert_eq!(bits(&found[..row.start]), bits(&expected[..row.start]), "{ty} {isa}");
                    assert_eq!(bits(&found[row.end..]), bits(&expected[row.end..]), "{ty} {isa}");
                }
            }
        }
    }
}

#[test]
fn pairs_route_rows_of_matrices_of_different_types() {
    let pool = Pool::new(2);
    let mut random = Random(8);
    let (n_weights, cols) = (21, 512);
    let x = random.activations(6 * cols);
    for isa in Isa::available() {
        let types = [GgmlType::Q4_K, GgmlType::Q5_0, GgmlType::F32];
        let bytes = types.map(|ty| random.weights(ty, n_weights, cols));
        let matrix = |i: usize| WeightMatrix::new(types[i], n_weights, cols, &bytes[i]).unwrap();
        let pairs: [&[(u32, u32)]; 3] = [&[(5, 0), (0, 3), (5, 4)], &[], &[(2, 1)]];
        let mut products: Vec<Product> = (0..3)
            .map(|i| Product { weights: matrix(i), out_col: 2, rows: RowMap::Pairs(pairs[i]) })
            .collect();
        products.push(Product {
            weights: matrix(1),
            out_col: 2 + n_weights,
            rows: RowMap::Pairs(&[(1, 4), (4, 2)]),
        });
        let stride = 2 * n_weights + 5;
        let mut out = vec![-7.0; 5 * stride];
        let mode = ActivationMode::Q8;
        Linear { pool: &pool, isa, mode }.run(
            &products,
            Input { x: &x, n_rows: 6, cols },
            Output { data: &mut out, stride },
            &mut Workspace::default(),
        );
        let mut expected = vec![-7.0; 5 * stride];
        for product in &products {
            for (x_row, out_row) in product.rows.iter() {
                let row = multiply(Isa::PORTABLE, mode, product.weights, &x[x_row * cols..][..cols], &pool);
                expected[out_row * stride + product.out_col..][..n_weights].copy_from_slice(&row);
            }
        }
        assert_eq!(bits(&out), bits(&expected), "{isa}");
    }
}

#[test]
fn slices_of_a_stack_are_its_matrices() {
    let mut random = Random(9);
    let bytes = random.weights(GgmlType::Q8_0, 12, 64);
    let stack = WeightMatrix::new(GgmlType::Q8_0, 12, 64, &bytes).unwrap();
    let x = random.activations(64);
    let (isa, pool) = (Isa::detect(), Pool::new(1));
    let whole = multiply(isa, ActivationMode::Q8, stack, &x, &pool);
    let part = multiply(isa, ActivationMode::Q8, stack.slice_rows(4..9), &x, &pool);
    assert_eq!(part, whole[4..9]);
}

#[test]
#[should_panic(expected = "two products write the same output")]
fn overlapping_outputs_are_refused() {
    let bytes = vec![0; 4 * 32];
    let weights = WeightMatrix::new(GgmlType::F32, 4, 8, &bytes).unwrap();
    let products = [0, 3].map(|out_col| Product { weights, out_col, rows: RowMap::Identity(1) });
    let mut out = vec![0.0; 8];
    Linear { pool: &Pool::new(1), isa: Isa::PORTABLE, mode: ActivationMode::Q8 }.run(
        &products,
        Input { x: &[0.0; 8], n_rows: 1, cols: 8 },
        Output { data: &mut out, stride: 8 },
        &mut Workspace::default(),
    );
}

#[test]
#[should_panic(expected = "two products write the same output")]
fn pairs_to_the_same_row_are_refused() {
    let bytes = vec![0; 4 * 32];
    let weights = WeightMatrix::new(GgmlType::F32, 4, 8, &bytes).unwrap();
    let products = [Product { weights, out_col: 0, rows: RowMap::Pairs(&[(0, 1), (1, 1)]) }];
    let mut out = vec![0.0; 8];
    Linear { pool: &Pool::new(1), isa: Isa::PORTABLE, mode: ActivationMode::Q8 }.run(
        &products,
        Input { x: &[0.0; 16], n_rows: 2, cols: 8 },
        Output { data: &mut out, stride: 4 },
        &mut Workspace::default(),
    );
}

#[test]
fn shapes_that_do_not_fit_their_bytes_are_refused() {
    assert!(WeightMatrix::new(GgmlType::Q4_0, 2, 32, &[0; 36]).is_ok());
    for (rows, cols, bytes) in [(2, 32, 35), (2, 33, 36), (usize::MAX, 32, 36), (2, usize::MAX, 36)] {
        let found = WeightMatrix::new(GgmlType::Q4_0, rows, cols, &[0; 40][..bytes]);
        assert_eq!(found.unwrap_err(), MatrixError { ty: GgmlType::Q4_0, rows, cols, bytes });
    }
}
