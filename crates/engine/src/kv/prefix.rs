//! Which cached sequences begin as a new prompt does.
//!
//! Entries are ordered by their tokens. In that order the entries next to a prompt's place share the longest prefix with
//! it, and the further one goes to either side the shorter the common prefix gets: the order is a prefix tree that
//! needs no nodes.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::cache::SequenceId;

/// Keeps the entries of different users apart: only prompts with the same salt find them.
pub type Salt = Option<Arc<str>>;

/// Salt and tokens of an entry.
type Key = (Salt, Vec<u32>);

/// Cached sequences by their tokens.
#[derive(Debug, Default)]
pub struct PrefixIndex {
    entries: BTreeMap<Key, Entry>,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    sequence: SequenceId,
    last_used: u64,
}

impl PrefixIndex {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a sequence; gives back the one that stood under the same tokens before.
    pub fn insert(&mut self, salt: Salt, tokens: Vec<u32>, sequence: SequenceId) -> Option<SequenceId> {
        self.clock += 1;
        let entry = Entry { sequence, last_used: self.clock };
        self.entries.insert((salt, tokens), entry).map(|old| old.sequence)
    }

    /// Calls `usable(sequence, common)` for entries that share `common` tokens with `tokens`, longest first, and returns
    /// the sequence and length of the best answer: how many positions can be used, at most `common`. The entry counts
    /// as used.
    pub fn longest(
        &mut self,
        salt: &Salt,
        tokens: &[u32],
        usable: impl Fn(SequenceId, usize) -> usize,
    ) -> Option<(SequenceId, usize)> {
        let place: Key = (salt.clone(), tokens.to_vec());
        let mut before = self.entries.range((Bound::Unbounded, Bound::Included(&place))).rev().peekable();
        let mut after = self.entries.range((Bound::Excluded(&place), Bound::Unbounded)).peekable();
        let common = |entry: Option<&(&Key, &Entry)>| {
            let (key, _) = entry?;
            (key.0 == *salt).then(|| key.1.iter().zip(tokens).take_while(|(a, b)| a == b).count())
        };
        let mut best: Option<(&Key, SequenceId, usize)> = None;
        loop {
            let (left, right) = (common(before.peek()), common(after.peek()));
            let Some(shared) = left.max(right) else { break };
            if best.is_some_and(|(_, _, n)| n >= shared) || shared == 0 {
                break;
            }
            let (key, entry) =
                if left == Some(shared) { before.next() } else { after.next() }.expect("peeked");
            let n = usable(entry.sequence, shared).min(shared);
            if n > best.map_or(0, |(_, _, n)| n) {
                best = Some((key, entry.sequence, n));
            }
        }
        let (key, sequence, n) = best?;
        let key = key.clone();
        self.clock += 1;
        let now = self.clock;
        self.entries.get_mut(&key).expect("just found").last_used = now;
        Some((sequence, n))
    }

    /// All entries: salt, tokens, sequence.
    pub fn iter(&self) -> impl Iterator<Item = (&Salt, &[u32], SequenceId)> {
        self.entries.iter().map(|((salt, tokens), entry)| (salt, tokens.as_slice(), entry.sequence))
    }

    /// Takes out the entry that was not used for longest.
    pub fn pop_oldest(&mut self) -> Option<SequenceId> {
        let key = self.entries.iter().min_by_key(|(_, e)| e.last_used)?.0.clone();
        self.entries.remove(&key).map(|e| e.sequence)
    }

    /// Takes out all entries.
    pub fn drain(&mut self) -> impl Iterator<Item = SequenceId> {
        std::mem::take(&mut self.entries).into_values().map(|e| e.sequence)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The best entry by trying all of them.
        #[test]
        fn the_longest_usable_prefix_is_found(
            texts in prop::collection::vec((any::<bool>(), prop::collection::vec(0u32..3, 0..8), 0usize..9), 1..30),
            prompt in prop::collection::vec(0u32..3, 0..10),
            salted in any::<bool>(),
        ) {
            let mut ids = super::super::cache::ids();
            let salt = |salted: bool| -> Salt { salted.then(|| "x".into()) };
            let mut index = PrefixIndex::default();
            let mut limits = std::collections::HashMap::new();
            for (salted, tokens, limit) in &texts {
                let id = ids.next().unwrap();
                limits.insert(id, *limit);
                index.insert(salt(*salted), tokens.clone(), id);
            }
            // Of equal texts the last counts; an entry serves up to `limit` positions or, beyond that, none.
            let usable = |id: SequenceId, n: usize| if n <= limits[&id] { n } else { 0 };
            let common = |a: &[u32]| a.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
            let best = index
                .iter()
                .filter(|(s, _, _)| **s == salt(salted))
                .map(|(_, tokens, id)| usable(id, common(tokens)))
                .max()
                .unwrap_or(0);
            let found = index.longest(&salt(salted), &prompt, usable).map_or(0, |(_, n)| n);
            prop_assert_eq!(found, best);
        }
    }

    #[test]
    fn what_was_used_last_goes_last() {
        let mut ids = super::super::cache::ids();
        let mut index = PrefixIndex::default();
        let [a, b, c] = [(); 3].map(|()| ids.next().unwrap());
        index.insert(None, vec![1, 2], a);
        index.insert(None, vec![1, 3], b);
        index.insert(None, vec![4], c);
        assert_eq!(index.longest(&None, &[1, 2, 9], |_, n| n), Some((a, 2)));
        let order: Vec<_> = std::iter::from_fn(|| index.pop_oldest()).collect();
        assert_eq!(order, [b, c, a]);
    }
}
