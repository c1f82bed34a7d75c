//! Positions and slots of a batch's rows, from whose successor each row is.

use std::collections::HashMap;

use super::cache::SequenceId;
use crate::batch::{Parent, Row};

/// Positions and slots of a batch's rows.
pub struct Paths {
    pub positions: Vec<usize>,
    pub slots: Vec<usize>,
    parents: Vec<Option<usize>>,
    chain: Vec<bool>,
    pub ends: HashMap<SequenceId, usize>,
}

impl Paths {
    /// # Panics
    /// When a row names a sequence that is not in the cache, or a parent that is no earlier row of its sequence.
    pub fn new(rows: &[Row], length: impl Fn(SequenceId) -> Option<usize>) -> Self {
        let n = rows.len();
        let mut paths = Self {
            positions: Vec::with_capacity(n),
            slots: Vec::with_capacity(n),
            parents: Vec::with_capacity(n),
            chain: Vec::with_capacity(n),
            ends: HashMap::new(),
        };
        let mut last: HashMap<SequenceId, usize> = HashMap::new();
        for (r, row) in rows.iter().enumerate() {
            let committed = length(row.sequence).expect("a row of a sequence of this cache");
            let parent = match row.parent {
                Parent::Previous => last.get(&row.sequence).copied(),
                Parent::Committed => None,
                Parent::Row(p) => {
                    assert!(p < r && rows[p].sequence == row.sequence, "row {r} has no parent row {p}");
                    Some(p)
                }
            };
            let end = paths.ends.entry(row.sequence).or_insert(committed);
            let slot = *end;
            *end += 1;
            let position = parent.map_or(committed, |p| paths.positions[p] + 1);
            // A row whose slot is its position has all its ancestors in slots that are their positions, if its
            // parent does.
            let chain = slot == position && parent.is_none_or(|p| paths.chain[p]);
            paths.positions.push(position);
            paths.slots.push(slot);
            paths.parents.push(parent);
            paths.chain.push(chain);
            last.insert(row.sequence, r);
        }
        paths
    }

    pub fn is_chain(&self, row: usize) -> bool {
        self.chain[row]
    }

    /// Slots of the uncommitted rows from the root to `row`, itself included.
    pub fn path(&self, row: usize) -> Vec<usize> {
        let mut slots = Vec::new();
        let mut at = Some(row);
        while let Some(r) = at {
            slots.push(self.slots[r]);
            at = self.parents[r];
        }
        slots.reverse();
        slots
    }
}
