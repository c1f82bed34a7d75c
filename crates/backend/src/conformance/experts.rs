//! Mixture of experts.

use lapidary_gguf::GgmlType;

use super::Tolerance;
use super::compare::{close, same_bits};
use super::products::bounds;
use super::random::{Random, read, upload};
use crate::{Backend, Choices, Dims, ExpertInput, MatrixData, ReferenceBackend};

/// [`Backend::route`].
pub fn route<B: Backend>(backend: &B, tolerance: &Tolerance) {
    let mut random = Random::new(40);
    for (rows, n_experts, top_k) in [(1, 4, 1), (1, 128, 8), (3, 17, 17), (70, 128, 8), (9, 5, 2)] {
        let scores: Vec<f32> = random.normals(rows * n_experts).into_iter().map(|x| 3.0 * x).collect();
        let scale = (random.below(2) == 0).then(|| random.normals(n_experts));
        let dims = Dims { rows, cols: n_experts };
        let found = routed(backend, &scores, dims, top_k, scale.as_deref()).1;
        let expected = routed(&ReferenceBackend, &scores, dims, top_k, scale.as_deref()).1;
        let what = format!("route of {rows} rows to {top_k} of {n_experts}");
        assert_eq!(found.experts, expected.experts, "{what}");
        // A weight is a quotient of exponentials, each of which doubles the error of its argument.
        close(&what, &found.weights, &expected.weights, |i| {
            4.0 * tolerance.relative * expected.weights[i].abs()
        });
        for r in 0..rows {
            let row = &scores[r * n_experts..(r + 1) * n_experts];
            let alone = routed(backend, row, Dims { rows: 1, cols: n_experts }, top_k, scale.as_deref()).1;
            let at = r * top_k..(r + 1) * top_k;
            assert_eq!(alone.experts, found.experts[at.clone()], "{what}, row {r} alone");
            same_bits(&format!("{what}, row {r} alone"), &alone.weights, &found.weights[at]);
        }
    }
}

/// [`Backend::route`]: the lower id first among equals, also where the probability is zero.
pub fn route_breaks_ties<B: Backend>(backend: &B, _: &Tolerance) {
    let cases: [(&[f32], &[u32]); 3] = [
        (&[1.0, 2.0, 2.0, 0.0, 2.0, 1.0], &[1, 2, 4, 0]),
        (&[0.5; 6], &[0, 1, 2, 3]),
        (&[-300.0, 0.0, -300.0, -300.0, -1.0, -300.0], &[1, 4, 0, 2]),
    ];
    for (scores, expected) in cases {
        let found = routed(backend, scores, Dims { rows: 1, cols: 6 }, 4, None).1;
        assert_eq!(found.experts, expected, "experts of {scores:?}");
        assert!((found.weights.iter().sum::<f32>() - 1.0).abs() < 1e-5, "weights of {scores:?} sum to 1");
    }
}

fn routed<B: Backend>(
    backend: &B,
    scores: &[f32],
    dims: Dims,
    top_k: usize,
    scale: Option<&[f32]>,
) -> (B::Routing, Choices) {
    let scores = upload(backend, scores);
    let scale = scale.map(|s| upload(backend, s));
    let mut routing = B::Routing::default();
    backend.route(&scores, dims, top_k, scale.as_ref(), &mut routing).unwrap();
    let choices = backend.choices(&routing).unwrap();
    (routing, choices)
}

/// [`Backend::expert_linear`]: both kinds of input, several matrices, experts that no row chose.
pub fn expert_linear<B: Backend>(backend: &B, tolerance: &Tolerance) {
    let mut random = Random::new(41);
    let types =
        [vec![GgmlType::Q4_K, GgmlType::Q6_K], vec![GgmlType::Q8_0], vec![GgmlType::F16, GgmlType::Q4_0]];
    for types in types {
        for (rows, n_experts, top_k) in [(1, 8, 2), (5, 4, 2), (23, 16, 3)] {
            for input in [ExpertInput::PerRow, ExpertInput::PerChoice] {
                let cols = 256;
                let matrices: Vec<MatrixData> = types
                    .iter()
                    .map(|&ty| {
                        let rows = 9 + random.below(30);
                        random.matrix(ty, n_experts, rows, cols)
                    })
                    .collect();
                let scores = random.normals(rows * n_experts);
                let n_inputs = if input == ExpertInput::PerRow { rows } else { rows * top_k };
                let x = random.activations(n_inputs * cols);
                let case =
                    ExpertCase { matrices: &matrices, scores: &scores, n_experts, top_k, input, x: &x };
                case.check(backend, tolerance);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct ExpertCase<'a> {
    matrices: &'a [MatrixData],
    /// `[rows, n_experts]`.
    scores: &'a [f32],
    n_experts: usize,
    top_k: usize,
    input: ExpertInput,
    x: &'a [f32],
}

impl ExpertCase<'_> {
    fn rows(&self) -> usize {
        self.scores.len() / self.n_experts
    }

    fn stride(&self) -> usize {
        self.matrices.iter().map(|m| m.rows).sum::<usize>() + 2
    }

    fn on<B: Backend>(&self, backend: &B) -> (Choices, Vec<f32>) {
        let dims = Dims { rows: self.rows(), cols: self.n_experts };
        let (routing, choices) = routed(backend, self.scores, dims, self.top_k, None);
        let x = upload(backend, self.x);
        let matrices: Vec<B::Matrix> =
            self.matrices.iter().map(|m| backend.matrix(m.clone()).unwrap()).collect();
        let matrices: Vec<&B::Matrix> = matrices.iter().collect();
        let n = self.rows() * self.top_k * self.stride();
        let mut out = upload(backend, &vec![-1.0; n]);
        backend.expert_linear(&x, self.input, &routing, &matrices, &mut out, self.stride()).unwrap();
        (choices, read(backend, &out, n))
    }

    fn check<B: Backend>(&self, backend: &B, tolerance: &Tolerance) {
        let ((_, found), (choices, expected)) = (self.on(backend), self.on(&ReferenceBackend));
        let (stride, cols) = (self.stride(), self.matrices[0].cols);
        let what = format!("expert product of {} rows, {:?}", self.rows(), self.input);
        let mut bound = vec![0.0; found.len()];
        for (choice, &expert) in choices.experts.iter().enumerate() {
            let row = if self.input == ExpertInput::PerRow { choice / self.top_k } else { choice };
            let mut at = choice * stride;
            for matrix in self.matrices {
                let x = &self.x[row * cols..(row + 1) * cols];
                bound[at..at + matrix.rows].copy_from_slice(&bounds(tolerance, matrix, expert as usize, x));
                at += matrix.rows;
            }
        }
        close(&what, &found, &expected, |i| bound[i]);
        for r in 0..self.rows() {
            let inputs = self.x.len() / self.rows();
            let scores = &self.scores[r * self.n_experts..(r + 1) * self.n_experts];
            let alone = ExpertCase { scores, x: &self.x[r * inputs..(r + 1) * inputs], ..*self };
            let at = r * self.top_k * stride..(r + 1) * self.top_k * stride;
            same_bits(&format!("{what}, row {r} alone"), &alone.on(backend).1, &found[at]);
        }
    }
}

/// [`Backend::combine`].
pub fn combine<B: Backend>(backend: &B, tolerance: &Tolerance) {
    let mut random = Random::new(42);
    for (rows, top_k, cols) in [(1, 1, 5), (1, 8, 2816), (6, 3, 33), (50, 8, 130)] {
        let scores = random.normals(rows * 16);
        let y = random.normals(rows * top_k * cols);
        let sums = |scores: &[f32], y: &[f32]| Sums { scores: scores.to_vec(), y: y.to_vec(), top_k, cols };
        let case = sums(&scores, &y);
        let (found, expected) = (case.on(backend), case.on(&ReferenceBackend));
        let what = format!("combination of {rows} rows of {top_k} choices of {cols}");
        let magnitude = |i: usize| {
            let (row, col) = (i / cols, i % cols);
            (0..top_k).map(|j| y[(row * top_k + j) * cols + col].abs()).sum::<f32>()
        };
        close(&what, &found, &expected, |i| 2.0 * tolerance.relative * magnitude(i));
        for r in 0..rows {
            let choices = r * top_k * cols..(r + 1) * top_k * cols;
            let alone = sums(&scores[r * 16..(r + 1) * 16], &y[choices]).on(backend);
            same_bits(&format!("{what}, row {r} alone"), &alone, &found[r * cols..(r + 1) * cols]);
        }
    }
}

/// Weights from the scores of 16 experts a row, and the choices' outputs.
struct Sums {
    scores: Vec<f32>,
    y: Vec<f32>,
    top_k: usize,
    cols: usize,
}

impl Sums {
    fn on<B: Backend>(&self, backend: &B) -> Vec<f32> {
        let rows = self.scores.len() / 16;
        let (routing, _) = routed(backend, &self.scores, Dims { rows, cols: 16 }, self.top_k, None);
        let y = upload(backend, &self.y);
        let mut out = backend.buffer(rows * self.cols).unwrap();
        backend.combine(&y, &routing, self.cols, &mut out).unwrap();
        read(backend, &out, rows * self.cols)
    }
}
