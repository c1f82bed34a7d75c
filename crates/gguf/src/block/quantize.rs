//! Encoding of rows, in any format.

use bytemuck::Pod;

use super::search::{error_weights, sum_of_squares};
use super::{
    BlockIq4Nl, BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1,
    BlockQ5K, BlockQ6K, BlockQ8_0, float,
};
use crate::types::GgmlType;

/// Why rows cannot be encoded.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum QuantizeError {
    /// The format can be read but not written.
    #[error("tensors of type {0} cannot be written")]
    Unsupported(GgmlType),
    /// The rows are no whole number of blocks.
    #[error("rows of {n_per_row} elements are no multiple of {ty}'s block of {}", .ty.block_len())]
    RowLength {
        /// The format.
        ty: GgmlType,
        /// Elements of a row.
        n_per_row: usize,
    },
    /// The data is no whole number of rows.
    #[error("{elements} elements are no whole number of rows of {n_per_row}")]
    Elements {
        /// Elements given.
        elements: usize,
        /// Elements of a row.
        n_per_row: usize,
    },
    /// The importances do not belong to the columns.
    #[error("{found} importances were given for rows of {n_per_row} elements")]
    ImportanceLength {
        /// Importances given.
        found: usize,
        /// Elements of a row.
        n_per_row: usize,
    },
    /// A number that has no place in a block.
    #[error("element {index} is {value}; only finite numbers can be quantised")]
    NotFinite {
        /// Index in the data.
        index: usize,
        /// Infinite or NaN, as text.
        value: String,
    },
    /// An importance that weighs nothing.
    #[error("importance {index} is {value}; importances are finite and not negative")]
    Importance {
        /// Index of the column.
        index: usize,
        /// The number, as text.
        value: String,
    },
}

/// Encodes rows of `n_per_row` elements as `ty` and appends the bytes to `out`.
///
/// `imatrix` weighs the columns by their importance, usually the mean square of the activations they are multiplied
/// with; the float types and Q8_0 do without. The bytes are those of GGML's `ggml_quantize_chunk`. A row's bytes
/// depend on that row alone, so that rows can be encoded in parallel.
///
/// # Errors
/// When lengths do not go together, a number is not finite, or the type is one that cannot be written (MXFP4).
/// Nothing is appended then.
pub fn quantize(
    ty: GgmlType,
    x: &[f32],
    n_per_row: usize,
    imatrix: Option<&[f32]>,
    out: &mut Vec<u8>,
) -> Result<(), QuantizeError> {
    check(ty, x, n_per_row, imatrix)?;
    out.reserve(x.len() / ty.block_len() * ty.block_bytes());
    match ty {
        GgmlType::F32 => float::encode_f32(x, out),
        GgmlType::F16 => float::encode_f16(x, out),
        GgmlType::BF16 => float::encode_bf16(x, out),
        GgmlType::Q8_0 => blocks(x, n_per_row, None, out, |x, _| BlockQ8_0::encode(x)),
        GgmlType::Q4_0 => weighted_by_row(x, n_per_row, imatrix, out, BlockQ4_0::encode),
        GgmlType::Q4_1 => weighted_by_row(x, n_per_row, imatrix, out, BlockQ4_1::encode),
        GgmlType::Q5_0 => weighted_by_row(x, n_per_row, imatrix, out, BlockQ5_0::encode),
        GgmlType::Q5_1 => weighted_by_row(x, n_per_row, imatrix, out, BlockQ5_1::encode),
        GgmlType::IQ4_NL => blocks(x, n_per_row, imatrix, out, BlockIq4Nl::encode),
        GgmlType::Q2_K => blocks(x, n_per_row, imatrix, out, BlockQ2K::encode),
        GgmlType::Q3_K => blocks(x, n_per_row, imatrix, out, BlockQ3K::encode),
        GgmlType::Q4_K => blocks(x, n_per_row, imatrix, out, BlockQ4K::encode),
        GgmlType::Q5_K => blocks(x, n_per_row, imatrix, out, BlockQ5K::encode),
        GgmlType::Q6_K => blocks(x, n_per_row, imatrix, out, BlockQ6K::encode),
        GgmlType::IQ4_XS => blocks(x, n_per_row, imatrix, out, BlockIq4Xs::encode),
        GgmlType::MXFP4 => return Err(QuantizeError::Unsupported(ty)),
    }
    Ok(())
}

fn check(ty: GgmlType, x: &[f32], n_per_row: usize, imatrix: Option<&[f32]>) -> Result<(), QuantizeError> {
    if ty == GgmlType::MXFP4 {
        return Err(QuantizeError::Unsupported(ty));
    }
    if n_per_row == 0 || !n_per_row.is_multiple_of(ty.block_len()) {
        return Err(QuantizeError::RowLength { ty, n_per_row });
    }
    if !x.len().is_multiple_of(n_per_row) {
        return Err(QuantizeError::Elements { elements: x.len(), n_per_row });
    }
    if let Some(imatrix) = imatrix {
        check_importances(imatrix, n_per_row)?;
    }
    // The float types store infinities and NaN as such.
    match x.iter().position(|v| !v.is_finite()) {
        Some(index) if !ty.is_float() => Err(QuantizeError::NotFinite { index, value: x[index].to_string() }),
        _ => Ok(()),
    }
}

fn check_importances(imatrix: &[f32], n_per_row: usize) -> Result<(), QuantizeError> {
    if imatrix.len() != n_per_row {
        return Err(QuantizeError::ImportanceLength { found: imatrix.len(), n_per_row });
    }
    match imatrix.iter().position(|v| !v.is_finite() || *v < 0.0) {
        Some(index) => Err(QuantizeError::Importance { index, value: imatrix[index].to_string() }),
        None => Ok(()),
    }
}

/// Encodes blocks with the importances of their columns.
fn blocks<T: Pod, const N: usize>(
    x: &[f32],
    n_per_row: usize,
    imatrix: Option<&[f32]>,
    out: &mut Vec<u8>,
    encode: impl Fn(&[f32; N], Option<&[f32; N]>) -> T,
) {
    for row in x.chunks_exact(n_per_row) {
        for (b, block) in row.as_chunks::<N>().0.iter().enumerate() {
            let importance = imatrix.map(|all| &all.as_chunks::<N>().0[b]);
            out.extend_from_slice(bytemuck::bytes_of(&encode(block, importance)));
        }
    }
}

/// Encodes blocks with error weights made of the importances and the mean square of the whole row.
fn weighted_by_row<T: Pod>(
    x: &[f32],
    n_per_row: usize,
    imatrix: Option<&[f32]>,
    out: &mut Vec<u8>,
    encode: impl Fn(&[f32; 32], Option<&[f32; 32]>) -> T,
) {
    for row in x.chunks_exact(n_per_row) {
        let variance = sum_of_squares(row) / n_per_row as f32;
        blocks(row, n_per_row, imatrix, out, |block, importance| {
            let weights = importance.map(|importance| error_weights(block, importance, variance));
            encode(block, weights.as_ref())
        });
    }
}
