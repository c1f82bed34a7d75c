//! Attention: which kernels, over which spans.

use std::sync::Arc;

use lapidary_backend::{Attention, Result};

use crate::arguments::AttentionJob;
use crate::device::{Device, Kernels, launch};
use crate::memory::Scratch;

/// Positions of a span; as in `cache.cu`.
const SPAN: usize = 32;
/// Threads of a block; as in `cache.cu`.
const THREADS: usize = 128;
/// Query heads that a block takes at most.
const MAX_HEADS: usize = 8;
/// Floats of partial results kept at once; rows go in parts that need no more.
const PARTIAL: usize = 16 << 20;

/// Attends the rows at `positions`. `job` lacks what depends on the rows taken together.
pub(crate) fn attend(
    device: &Arc<Device>,
    kernels: &Kernels,
    attention: &Attention,
    positions: &[u32],
    mut job: AttentionJob,
    partial: &mut Scratch<f32>,
) -> Result<()> {
    let layout = attention.layout;
    let shared = layout.heads / layout.kv_heads;
    let together = shared.next_power_of_two().min(MAX_HEADS);
    let kernel =
        kernels.get(["attend_1", "attend_2", "attend_4", "attend_8"][together.trailing_zeros() as usize]);
    let merge = kernels.get("merge");
    let mut first_row = 0;
    while first_row < positions.len() {
        let spans = |rows: &[u32]| rows.iter().map(|&p| span_count(p, attention.window)).max().unwrap_or(0);
        let row_len = |spans: usize| spans * layout.heads * (layout.head_dim + 2);
        let most = spans(&positions[first_row..]);
        // Grids are at most 65535 blocks high and deep.
        let n_rows = (PARTIAL / row_len(most)).clamp(1, 65535).min(positions.len() - first_row);
        let max_spans = spans(&positions[first_row..first_row + n_rows]);
        if max_spans > 65535 {
            return Err(device.unsupported(format!("attention over more than {} positions", 65535 * SPAN)));
        }
        job.partial =
            partial.reserve(device, n_rows * row_len(max_spans), "partial attention")?.address(device);
        (job.first_row, job.max_spans) = (first_row as i32, max_spans as i32);
        let chunks = layout.kv_heads * shared.div_ceil(together);
        launch!(device, kernel, (chunks, n_rows, max_spans), THREADS, 0; job);
        launch!(device, merge, (layout.heads, n_rows, 1), THREADS, 0; job);
        first_row += n_rows;
    }
    Ok(())
}

/// Spans that a row at `position` sees.
fn span_count(position: u32, window: Option<usize>) -> usize {
    let position = position as usize;
    let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
    position / SPAN - first / SPAN + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_cut_at_absolute_positions() {
        assert_eq!(span_count(0, None), 1);
        assert_eq!(span_count(31, None), 1);
        assert_eq!(span_count(32, None), 2);
        assert_eq!(span_count(64, Some(1)), 1);
        assert_eq!(span_count(1000, Some(512)), 1000 / 32 - 489 / 32 + 1);
    }
}
