//! RMS normalisation and residual addition.

use super::Tolerance;
use super::compare::{close, same_bits};
use super::random::{Random, read, upload};
use crate::{Backend, Dims, Norm, ReferenceBackend};

const EPS: f32 = 1e-6;

/// Rows and columns: one row and many, columns off every tile.
const SHAPES: [(usize, usize); 7] = [(1, 1), (1, 640), (2, 17), (5, 31), (3, 2816), (64, 640), (513, 48)];

/// [`Backend::rms_norm`], with and without weight.
pub fn rms_norm<B: Backend>(backend: &B, tolerance: &Tolerance) {
    let mut random = Random::new(10);
    for (rows, cols) in SHAPES {
        let x = random.activations(rows * cols);
        let weight = (random.below(2) == 0).then(|| random.normals(cols));
        let dims = Dims { rows, cols };
        let found = normed(backend, &x, weight.as_deref(), dims);
        let expected = normed(&ReferenceBackend, &x, weight.as_deref(), dims);
        let what = format!("rms norm of {rows} x {cols}");
        close(&what, &found, &expected, |i| tolerance.relative * expected[i].abs());
        for r in 0..rows {
            let at = r * cols..(r + 1) * cols;
            let alone = normed(backend, &x[at.clone()], weight.as_deref(), Dims { rows: 1, cols });
            same_bits(&format!("{what}, row {r} alone"), &alone, &found[at]);
        }
    }
    let zero = normed(backend, &[0.0; 20], None, Dims { rows: 1, cols: 20 });
    same_bits("rms norm of zeros", &zero, &[0.0; 20]);
}

fn normed<B: Backend>(backend: &B, x: &[f32], weight: Option<&[f32]>, dims: Dims) -> Vec<f32> {
    let x = upload(backend, x);
    let weight = weight.map(|w| upload(backend, w));
    let mut out = backend.buffer(dims.rows * dims.cols).unwrap();
    backend.rms_norm(&x, Norm { weight: weight.as_ref(), eps: EPS }, dims, &mut out).unwrap();
    read(backend, &out, dims.rows * dims.cols)
}

/// [`Backend::add_norm`], with and without weight, without scale, with one, with one a column.
pub fn add_norm<B: Backend>(backend: &B, tolerance: &Tolerance) {
    let mut random = Random::new(11);
    for (i, (rows, cols)) in SHAPES.into_iter().cycle().take(3 * SHAPES.len()).enumerate() {
        let (x, y) = (random.activations(rows * cols), random.activations(rows * cols));
        let weight = (random.below(4) > 0).then(|| random.normals(cols));
        let scale = [None, Some(random.normals(1)), Some(random.normals(cols))][i % 3].clone();
        let dims = Dims { rows, cols };
        let add = Add { x: &x, y: &y, weight: weight.as_deref(), scale: scale.as_deref(), dims };
        let (found, expected) = (add.on(backend), add.on(&ReferenceBackend));
        let factor = |at: usize| match scale.as_deref() {
            None => 1.0,
            Some([one]) => one.abs(),
            Some(all) => all[at % cols].abs(),
        };
        let what = format!("add norm of {rows} x {cols}");
        // The sum may cancel: the error is measured against its terms, of which x is one.
        let bound = |at: usize| tolerance.relative * (2.0 * x[at].abs() * factor(at) + expected[at].abs());
        close(&what, &found, &expected, bound);
        for r in 0..rows {
            let at = r * cols..(r + 1) * cols;
            let alone = Add { x: &x[at.clone()], y: &y[at.clone()], dims: Dims { rows: 1, cols }, ..add };
            same_bits(&format!("{what}, row {r} alone"), &alone.on(backend), &found[at]);
        }
    }
}

#[derive(Clone, Copy)]
struct Add<'a> {
    x: &'a [f32],
    y: &'a [f32],
    weight: Option<&'a [f32]>,
    scale: Option<&'a [f32]>,
    dims: Dims,
}

impl Add<'_> {
    fn on<B: Backend>(&self, backend: &B) -> Vec<f32> {
        let (mut x, y) = (upload(backend, self.x), upload(backend, self.y));
        let weight = self.weight.map(|w| upload(backend, w));
        let scale = self.scale.map(|s| upload(backend, s));
        let norm = Norm { weight: weight.as_ref(), eps: EPS };
        backend.add_norm(&mut x, &y, norm, scale.as_ref(), self.dims).unwrap();
        read(backend, &x, self.x.len())
    }
}
