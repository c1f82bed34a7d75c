//! A check of the machine's kernels that users can run.

use lapidary_gguf::GgmlType;

use crate::linear::{ActivationMode, Input, Isa, Linear, Output, Product, RowMap, WeightMatrix, Workspace};
use crate::pool::Pool;

const ROWS: usize = 19;
const COLS: usize = 512;
/// Products with one row and with several take different kernels.
const BATCHES: [usize; 2] = [1, 5];

/// Multiplies pseudo-random weights of every type with every instruction set of this machine and compares the
/// results with the scalar kernels bit for bit. Returns how many products were compared.
///
/// # Errors
/// Words that name the first product that differs.
pub fn self_test() -> Result<usize, String> {
    let (one, several) = (Pool::new(1), Pool::new(2));
    let mut compared = 0;
    for ty in GgmlType::ALL {
        let bytes = weights(ty);
        let matrix = WeightMatrix::new(ty, ROWS, COLS, &bytes).map_err(|e| e.to_string())?;
        for mode in [ActivationMode::Q8, ActivationMode::F32] {
            for n_rows in BATCHES {
                let reference = multiply(&one, Isa::PORTABLE, mode, matrix, n_rows);
                for isa in Isa::available() {
                    let found = multiply(&several, isa, mode, matrix, n_rows);
                    if let Some(at) = (0..found.len()).find(|&i| differ(found[i], reference[i])) {
                        return Err(format!(
                            "{isa}, {ty} weights, {mode:?} activations, {n_rows} rows: output {at} is {}, the \
                             scalar kernel's {}",
                            found[at], reference[at]
                        ));
                    }
                    compared += 1;
                }
            }
        }
    }
    Ok(compared)
}

fn differ(a: f32, b: f32) -> bool {
    a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan())
}

fn multiply(pool: &Pool, isa: Isa, mode: ActivationMode, weights: WeightMatrix, n_rows: usize) -> Vec<f32> {
    let mut out = vec![0.0; n_rows * ROWS];
    let x: Vec<f32> = (0..n_rows * COLS).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect();
    let product = Product { weights, out_col: 0, rows: RowMap::Identity(n_rows) };
    let input = Input { x: &x, n_rows, cols: COLS };
    let output = Output { data: &mut out, stride: ROWS };
    Linear { pool, isa, mode }.run(&[product], input, output, &mut Workspace::default());
    out
}

/// Bytes of a test matrix. Scales are two-byte floats somewhere in a block, so all bytes are kept to patterns that
/// are finite in every place where one may begin.
fn weights(ty: GgmlType) -> Vec<u8> {
    let len = ty.row_bytes(COLS).map_or(0, |row| row * ROWS);
    let mut state = 0x9e37_79b9u32;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // 0x00-0x3f and 0x80-0xbf: as the high byte of a half or bfloat16, below 2; all sorts of codes.
            ((state >> 24) as u8) & 0xbf
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_machine_passes() {
        let compared = super::self_test().unwrap();
        assert_eq!(compared, 16 * 2 * super::BATCHES.len() * crate::Isa::available().len());
    }
}
