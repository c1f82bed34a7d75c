//! Products in 32-bit floats, scalar: float weights, and every type when activations are not rounded.

use std::ops::Range;

use super::Scratch;
use super::job::Job;

/// Partial sums of a dot product.
pub(super) const LANES: usize = 16;

/// The dot product in its canonical order: column `k` goes to partial sum `k % 16` by a fused multiply-add, missing
/// columns of the last 16 count as zeros, and the sums are folded in halves.
pub(super) fn dot(w: &[f32], x: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    for (w, x) in w.chunks(LANES).zip(x.chunks(LANES)) {
        for (i, sum) in sums.iter_mut().enumerate() {
            let (w, x) = (w.get(i).copied().unwrap_or(0.0), x.get(i).copied().unwrap_or(0.0));
            *sum = w.mul_add(x, *sum);
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    sums[0]
}

/// Multiplies weight rows `rows` with the job's activation rows.
///
/// # Safety
/// No other thread writes the same outputs.
pub(super) unsafe fn rows(job: &Job, rows: Range<usize>, scratch: &mut Scratch) {
    let weights = scratch.floats.ensure::<f32>(job.weights.cols);
    for row in rows {
        decode(job, row, weights);
        for (x_row, out_row) in job.map.iter() {
            // SAFETY: the caller's promise.
            unsafe { job.output(out_row, row, 1)[0] = dot(weights, job.x_row(x_row)) };
        }
    }
}

/// Decodes weight row `row`.
pub(super) fn decode(job: &Job, row: usize, out: &mut [f32]) {
    lapidary_gguf::block::dequantize(job.weights.ty, job.weights.row(row), out)
        .expect("a weight matrix holds whole rows");
}
