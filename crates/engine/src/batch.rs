//! The batch: rows of any number of sequences that go through the model together.

use crate::kv::SequenceId;

/// One token of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The sequence it belongs to.
    pub sequence: SequenceId,
    /// What is embedded.
    pub input: Input,
    /// Whose successor the row is; this fixes its position and what it sees.
    pub parent: Parent,
    /// What the caller wants to know of the row.
    pub want: Want,
}

/// The input of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A token id.
    Token(u32),
    /// A ready embedding: row `index` of [`Batch::embeddings`], used as it is. It counts as the padding token 0
    /// where an id is needed (per-layer embeddings).
    Embedding {
        /// Row of [`Batch::embeddings`].
        index: usize,
    },
}

/// The predecessor of a row. A sequence all of whose rows are [`Previous`](Self::Previous) grows by them; rows that name
/// another parent are a draft, of which nothing is kept until [`KvCache::accept`](crate::KvCache::accept).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// The row of the same sequence before it in the batch; for the first one, the sequence's last position.
    Previous,
    /// The sequence's last committed position, whatever rows came before in the batch.
    Committed,
    /// Row `.0` of the batch, an earlier one of the same sequence: a branch of a draft tree.
    Row(usize),
}

/// What the forward pass returns of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Nothing: the row only fills the cache.
    Nothing,
    /// The hidden state after the final norm.
    Hidden,
    /// The logits over the vocabulary.
    Logits,
    /// The so many largest logits: at least those, the lower token first among equals. Where the whole output matrix is
    /// read anyway the result has all of them. Cheaper than [`Logits`](Want::Logits), with the same bits.
    Best(usize),
}

impl Want {
    /// Whether logits come back.
    pub fn wants_logits(self) -> bool {
        matches!(self, Self::Logits | Self::Best(_))
    }
}

/// Rows that go through the model together. Rows of one sequence stand in the order of their positions.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The rows.
    pub rows: Vec<Row>,
    /// Ready embeddings, `[n, hidden]`.
    pub embeddings: Vec<f32>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends `tokens` to `sequence`; only the last one's `want` is asked for.
    pub fn extend(&mut self, sequence: SequenceId, tokens: &[u32], want: Want) {
        for (i, &token) in tokens.iter().enumerate() {
            let want = if i + 1 == tokens.len() { want } else { Want::Nothing };
            self.push(sequence, token, want);
        }
    }

    /// Appends one token to `sequence`.
    pub fn push(&mut self, sequence: SequenceId, token: u32, want: Want) {
        self.rows.push(Row { sequence, input: Input::Token(token), parent: Parent::Previous, want });
    }

    /// Removes all rows, keeping the memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.embeddings.clear();
    }
}
