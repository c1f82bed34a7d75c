//! The scalar twin of every quantised kernel, written to be read: it is the definition of the results.

use std::ops::Range;

use super::format::{Block32, Block256};
use super::job::Job;

/// Multiplies weight rows `rows` in blocks of 32 with the job's activation rows.
///
/// # Safety
/// No other thread writes the same outputs.
pub(super) unsafe fn block32<B: Block32>(job: &Job, rows: Range<usize>) {
    for row in rows {
        let weights: &[B] = bytemuck::cast_slice(job.weights.row(row));
        for (x_row, out_row) in job.map.iter() {
            let x = job.activations.row32(x_row);
            let mut acc = 0.0f32;
            let mut codes = [0; 32];
            for (b, block) in weights.iter().enumerate() {
                block.codes(&mut codes);
                let x_codes = &x.codes[32 * b..32 * b + 32];
                let sum: i32 = codes.iter().zip(x_codes).map(|(w, x)| i32::from(*w) * i32::from(*x)).sum();
                acc = (sum as f32).mul_add(block.scale() * x.scales[b], acc);
                if B::HAS_MIN {
                    acc = block.min().mul_add(x.scaled_sums[b], acc);
                }
            }
            // SAFETY: the caller's promise.
            unsafe { job.output(out_row, row, 1)[0] = acc };
        }
    }
}

/// Multiplies weight rows `rows` in superblocks with the job's activation rows.
///
/// # Safety
/// No other thread writes the same outputs.
pub(super) unsafe fn block256<B: Block256>(job: &Job, rows: Range<usize>) {
    for row in rows {
        let weights: &[B] = bytemuck::cast_slice(job.weights.row(row));
        for (x_row, out_row) in job.map.iter() {
            let x = job.activations.row256(x_row);
            let mut acc = 0.0f32;
            let mut codes = [0; 256];
            let (mut scales, mut mins) = ([0; 16], [0; 16]);
            for (b, block) in weights.iter().enumerate() {
                block.codes(&mut codes);
                block.groups(&mut scales, &mut mins);
                let x_codes = &x.codes[256 * b..256 * b + 256];
                let (mut sum, mut min_sum) = (0i32, 0i32);
                for g in 0..16 {
                    let columns = 16 * g..16 * g + 16;
                    let dot: i32 = codes[columns.clone()]
                        .iter()
                        .zip(&x_codes[columns])
                        .map(|(w, x)| i32::from(*w) * i32::from(*x))
                        .sum();
                    sum += i32::from(scales[g]) * (dot << x.shifts[8 * b + g / 2]);
                    min_sum += i32::from(mins[g]) * i32::from(x.sums[16 * b + g]);
                }
                acc = (sum as f32).mul_add(block.scale() * x.scales[b], acc);
                if B::HAS_MIN {
                    acc = (min_sum as f32).mul_add(block.neg_min_scale() * x.scales[b], acc);
                }
            }
            // SAFETY: the caller's promise.
            unsafe { job.output(out_row, row, 1)[0] = acc };
        }
    }
}
