//! The rows of a batch as a backend sees them: tokens, positions and where their keys and values lie.

/// A batch of rows, laid out for upload. Row `r` is one token of one sequence at one position.
#[derive(Clone, Debug, Default)]
pub struct RowBatch {
    /// Token id of each row. Rows with a ready embedding carry any valid id.
    pub tokens: Vec<u32>,
    /// Position of each row in its sequence.
    pub positions: Vec<u32>,
    /// Cache addresses, one entry a layer group.
    pub groups: Vec<GroupRows>,
}

impl RowBatch {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// Cache addresses of a batch's rows in one layer group.
#[derive(Clone, Debug, Default)]
pub struct GroupRows {
    /// The cell that receives each row's key and value.
    pub store: Vec<u32>,
    /// What each row sees of the cache.
    pub views: Vec<RowView>,
    /// Block tables of the sequences, one after the other; [`RowView::table`] points into it.
    pub blocks: Vec<u32>,
    /// Cells of tree rows' ancestors; [`RowView::tail`] points into it.
    pub tails: Vec<u32>,
}

/// The cache positions visible to one row, before the sliding window is applied.
///
/// A row at position `t` sees the positions `0..=t` of its own path. Positions below `shared` are addressed
/// through the sequence's block table; those from `shared` to `t` lie in the cells `tails[tail..]`, which is how
/// the rows of a draft tree see their ancestors but not their siblings. A plain row has `shared = t + 1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowView {
    /// Start of the sequence's block table in [`GroupRows::blocks`].
    pub table: u32,
    /// Position block (position / block_len) that the table's first entry stands for; earlier ones fell out of
    /// the window and were released.
    pub first_block: u32,
    /// Positions below this one are addressed through the block table.
    pub shared: u32,
    /// Start of the row's tail in [`GroupRows::tails`].
    pub tail: u32,
}

impl GroupRows {
    /// The cell of `position` on the path of row `row`.
    pub fn cell(&self, row: usize, position: usize, block_len: usize) -> usize {
        let view = &self.views[row];
        if position >= view.shared as usize {
            return self.tails[view.tail as usize + position - view.shared as usize] as usize;
        }
        let entry = view.table as usize + position / block_len - view.first_block as usize;
        self.blocks[entry] as usize * block_len + position % block_len
    }
}
