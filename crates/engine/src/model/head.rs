//! The output matrix in another format than the file's, and the exact second look that makes up for it.
//!
//! A head stored in 16- or 32-bit floats may be re-quantised at load, for machines where its bytes dominate. That can
//! flip near ties, so the logits that could win are computed again from the stored rows.

use lapidary_backend::{Backend, MatrixData};
use lapidary_gguf::{GgmlType, Gguf, TensorInfo, block};

use super::screening::Screen;
use crate::error::{EngineError, Result};

/// Logits this close to the best are computed again.
const MARGIN: f32 = 0.5;
/// This many of the best are computed again in any case.
const BEST: usize = 64;
/// Rows that are re-quantised together.
const CHUNK_ROWS: usize = 4096;

/// Format of the output matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadFormat {
    /// As the file has it, without a copy.
    #[default]
    Native,
    /// Half precision.
    F16,
    /// 8-bit blocks.
    Q8_0,
}

/// How the output matrix is loaded and used.
#[derive(Clone, Debug, Default)]
pub struct HeadOptions {
    /// Its format. Only heads stored as F32, F16 or BF16 can be re-quantised.
    pub format: HeadFormat,
    /// Look again, exactly, at the logits of a re-quantised head that could win, and always at these tokens.
    pub rerank: Option<Vec<u32>>,
    /// A coarse copy that finds the largest logits; only of a head in its native format.
    pub screen: Screen,
}

/// A re-quantised head.
pub struct Head<B: Backend> {
    /// The matrix in its new format.
    pub matrix: B::Matrix,
    /// Tokens that are always looked at again; absent: none are.
    pub rerank: Option<Vec<u32>>,
}

impl<B: Backend> Head<B> {
    /// Re-quantises the head as `options` say; `None` when it is used as stored.
    ///
    /// # Errors
    /// When the stored type is a quantised one, or its rows do not fit the new format.
    pub fn load(
        gguf: &Gguf,
        stored: &TensorInfo,
        options: &HeadOptions,
        backend: &B,
    ) -> Result<Option<Self>> {
        let ty = match options.format {
            HeadFormat::Native => return Ok(None),
            HeadFormat::F16 => GgmlType::F16,
            HeadFormat::Q8_0 => GgmlType::Q8_0,
        };
        if stored.ty()? == ty {
            return Ok(None);
        }
        let bytes = requantize(gguf, stored, ty)?;
        let (cols, rows) = (stored.shape()[0] as usize, stored.shape()[1] as usize);
        let name = format!("{} as {ty}", stored.name());
        let data = MatrixData { name, ty, rows, cols, stack: 1, bytes: bytes.into() };
        Ok(Some(Self { matrix: backend.matrix(data)?, rerank: options.rerank.clone() }))
    }
}

fn requantize(gguf: &Gguf, stored: &TensorInfo, ty: GgmlType) -> Result<Vec<u8>> {
    let unfit = |problem: String| EngineError::tensor(stored.name(), problem);
    let from = stored.ty()?;
    if !from.is_float() {
        return Err(unfit(format!(
            "the head is stored as {from}; only float heads are re-quantised, use native"
        )));
    }
    let (cols, rows) = (stored.shape()[0] as usize, stored.shape()[1] as usize);
    let unfit_rows = || unfit(format!("rows of {cols} elements do not fit {ty}"));
    let row_bytes = ty.row_bytes(cols).ok_or_else(unfit_rows)?;
    let data = gguf.data(stored)?;
    let mut out = Vec::with_capacity(row_bytes * rows);
    let mut values = vec![0.0; cols * CHUNK_ROWS.min(rows)];
    for chunk in data.chunks(from.block_bytes() * cols * CHUNK_ROWS) {
        let values = &mut values[..chunk.len() / from.block_bytes()];
        block::dequantize(from, chunk, values).map_err(|e| unfit(e.to_string()))?;
        block::quantize(ty, values, cols, None, &mut out).map_err(|e| unfit(e.to_string()))?;
    }
    Ok(out)
}

/// The tokens whose logit could be the largest: those within [`MARGIN`] of the best, the [`BEST`] best, and `always`.
/// Ascending, each once.
pub fn candidates(logits: &[f32], always: &[u32]) -> Vec<u32> {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut ids: Vec<u32> =
        logits.iter().enumerate().filter(|(_, l)| **l >= best - MARGIN).map(|(i, _)| i as u32).collect();
    ids.extend(crate::sample::best(logits, BEST));
    ids.extend(always.iter().filter(|&&id| (id as usize) < logits.len()));
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_the_close_the_best_and_the_named() {
        let mut logits = vec![-10.0; 1000];
        (logits[900], logits[3]) = (5.0, 4.6);
        let ids = candidates(&logits, &[999, 5000]);
        assert!(ids.contains(&900) && ids.contains(&3) && ids.contains(&999) && !ids.contains(&5000));
        // The 64 best, and the one named that is not among them.
        assert_eq!(ids.len(), 65);
        assert!(ids.windows(2).all(|w| w[0] < w[1]));
        assert_eq!(candidates(&vec![1.0; 200], &[]).len(), 200);
    }
}
