//! Splitting products into tasks, and the checks that make the tasks independent.

use std::ops::Range;

use super::isa::{Isa, Level};
use super::{Input, Output, Product, RowMap};

/// Some weight rows of one product.
pub(super) struct Task {
    pub(super) product: usize,
    pub(super) rows: Range<usize>,
}

/// Columns of one output row that a product writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    row: usize,
    begin: usize,
    end: usize,
}

/// Weight bytes that a task should at least read, so that handing it out costs little beside it.
const TASK_BYTES: usize = 64 * 1024;

/// Tasks that each thread should get if there is enough to do, so that threads end together.
const TASKS_PER_THREAD: usize = 6;

/// Weight rows that the kernels take at a time.
pub(super) fn tile_rows(isa: Isa) -> usize {
    match isa.level() {
        Level::Portable => 1,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => super::x86::gemm::TILE_AVX2,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => super::x86::gemm::TILE_VNNI,
    }
}

/// Cuts the products' weight rows into tasks of whole tiles.
pub(super) fn split(products: &[Product], n_threads: usize, tile: usize, tasks: &mut Vec<Task>) {
    tasks.clear();
    let work = |p: &Product| p.weights.bytes.len() * p.rows.len();
    let total: usize = products.iter().map(work).sum();
    let task_work = TASK_BYTES.min(total / (n_threads * TASKS_PER_THREAD)).max(1);
    for (index, product) in products.iter().enumerate() {
        let (rows, row_work) = (product.weights.rows, product.weights.row_bytes() * product.rows.len());
        if rows == 0 || row_work == 0 {
            continue;
        }
        let each = task_work.div_ceil(row_work).next_multiple_of(tile);
        tasks.extend(
            (0..rows).step_by(each).map(|first| Task { product: index, rows: first..rows.min(first + each) }),
        );
    }
}

/// Asserts what [`super::Linear::run`] demands of its arguments.
pub(super) fn check(products: &[Product], input: &Input, out: &Output, claims: &mut Vec<Claim>) {
    let mut routed = false;
    claims.clear();
    for product in products {
        let (weights, begin) = (&product.weights, product.out_col);
        assert_eq!(weights.cols, input.cols, "columns of a matrix and of its input");
        let end = begin + weights.rows;
        assert!(end <= out.stride, "columns {begin}..{end} of output rows of {}", out.stride);
        if weights.rows == 0 {
            continue;
        }
        match product.rows {
            RowMap::Identity(n) => {
                assert!(n <= input.n_rows, "{n} of {} activation rows", input.n_rows);
                assert!(n == 0 || (n - 1) * out.stride + end <= out.data.len(), "{n} rows of output");
            }
            RowMap::Pairs(pairs) => {
                routed = true;
                for &(x_row, out_row) in pairs {
                    assert!((x_row as usize) < input.n_rows, "activation row {x_row} of {}", input.n_rows);
                    assert!(out_row as usize * out.stride + end <= out.data.len(), "output row {out_row}");
                }
            }
        }
    }
    if routed {
        for product in products.iter().filter(|p| p.weights.rows > 0) {
            let (begin, end) = (product.out_col, product.out_col + product.weights.rows);
            claims.extend(product.rows.iter().map(|(_, row)| Claim { row, begin, end }));
        }
    } else {
        // All products write the same rows, or fewer from the first: the columns decide.
        let filled = products.iter().filter(|p| p.weights.rows > 0 && !p.rows.is_empty());
        claims.extend(filled.map(|p| Claim { row: 0, begin: p.out_col, end: p.out_col + p.weights.rows }));
    }
    claims.sort_unstable();
    let overlap = claims.windows(2).find(|w| w[0].row == w[1].row && w[1].begin < w[0].end);
    assert!(overlap.is_none(), "two products write the same output");
}
