//! Byte-pair merging: joins neighbours, most urgent pair first, until none can be joined.
//!
//! A heap holds every pair of neighbours that could be joined; symbols form a linked list. A text of n characters
//! takes O(n log n) steps whatever it says.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::fingerprint::{Fingerprint, Fingerprinter};

/// No symbol, and the rank of no pair.
const NONE: u32 = u32::MAX;

/// A run of the text that is one unit so far. `len` is zero once it has been joined to its left neighbour.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: u32,
    len: u32,
    previous: u32,
    next: u32,
    /// Rank of joining this symbol with the next one.
    rank: u32,
    fingerprint: Fingerprint,
}

/// A symbol seen with its text.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub text: &'a [u8],
    pub fingerprint: Fingerprint,
}

/// A symbol that could be joined with the next one: the rank above the symbol's place, so that one comparison orders
/// by both. It is out of date when the symbol has another rank by now.
type Candidate = u64;

/// Working memory of merging, to be used again for the next text.
#[derive(Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Splits `text` into characters of the lengths that `char_len` tells, then joins neighbours: those for which
    /// `rank` is lowest first, and of equal ones the leftmost. `rank` tells `None` for pairs that are not joined,
    /// and never `u32::MAX`.
    ///
    /// Returns the symbols that are left, in order. `text` must be shorter than 2^32 - 1 bytes.
    pub fn merge<'a>(
        &'a mut self,
        text: &'a [u8],
        hasher: Fingerprinter,
        char_len: impl Fn(u8) -> usize,
        rank: impl Fn(Part, Part) -> Option<u32>,
    ) -> impl Iterator<Item = Part<'a>> {
        self.split(text, hasher, char_len);
        self.collect_candidates(text, &rank);
        while let Some(Reverse(candidate)) = self.heap.pop() {
            let (rank_then, at) = ((candidate >> 32) as u32, candidate as u32);
            if self.symbols[at as usize].rank == rank_then {
                self.join_next(at);
                self.update(text, self.symbols[at as usize].previous, &rank);
                self.update(text, at, &rank);
            }
        }
        self.symbols.iter().filter(|symbol| symbol.len > 0).map(|symbol| symbol.part(text))
    }

    fn split(&mut self, text: &[u8], hasher: Fingerprinter, char_len: impl Fn(u8) -> usize) {
        assert!(text.len() < NONE as usize, "text of {} bytes", text.len());
        self.symbols.clear();
        let mut start = 0;
        while start < text.len() {
            let len = char_len(text[start]).min(text.len() - start);
            let at = self.symbols.len() as u32;
            self.symbols.push(Symbol {
                start: start as u32,
                len: len as u32,
                // The first one has none before it: minus one is `NONE`.
                previous: at.wrapping_sub(1),
                next: at + 1,
                rank: NONE,
                fingerprint: hasher.of(&text[start..start + len]),
            });
            start += len;
        }
        if let Some(last) = self.symbols.last_mut() {
            last.next = NONE;
        }
    }

    /// Puts all neighbours on the heap at once, which is cheaper than one by one.
    fn collect_candidates(&mut self, text: &[u8], rank: &impl Fn(Part, Part) -> Option<u32>) {
        let mut candidates = std::mem::take(&mut self.heap).into_vec();
        candidates.clear();
        candidates
            .extend((0..self.symbols.len() as u32).filter_map(|at| self.rank(text, at, rank)).map(Reverse));
        self.heap = candidates.into();
    }

    /// Ranks the pair of symbol `at` and the next one, anew after one of them has changed.
    fn update(&mut self, text: &[u8], at: u32, rank: &impl Fn(Part, Part) -> Option<u32>) {
        if at != NONE {
            let candidate = self.rank(text, at, rank);
            self.heap.extend(candidate.map(Reverse));
        }
    }

    fn rank(&mut self, text: &[u8], at: u32, rank: &impl Fn(Part, Part) -> Option<u32>) -> Option<Candidate> {
        let left = &self.symbols[at as usize];
        let right = self.symbols.get(left.next as usize);
        let rank = right.and_then(|right| rank(left.part(text), right.part(text)));
        self.symbols[at as usize].rank = rank.unwrap_or(NONE);
        rank.map(|rank| u64::from(rank) << 32 | u64::from(at))
    }

    fn join_next(&mut self, at: u32) {
        let next = self.symbols[at as usize].next;
        let gone = self.symbols[next as usize];
        self.symbols[next as usize] = Symbol { len: 0, rank: NONE, ..gone };
        let grown = &mut self.symbols[at as usize];
        grown.len += gone.len;
        grown.next = gone.next;
        grown.fingerprint = grown.fingerprint.join(gone.fingerprint);
        if let Some(after) = self.symbols.get_mut(gone.next as usize) {
            after.previous = at;
        }
    }
}

impl Symbol {
    fn part<'a>(&self, text: &'a [u8]) -> Part<'a> {
        Part { text: &text[self.start as usize..][..self.len as usize], fingerprint: self.fingerprint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    type Ranks = HashMap<(Vec<u8>, Vec<u8>), u32>;

    /// The definition: look through all neighbours, join the best, start again.
    fn merge_naively(text: &[u8], ranks: &Ranks) -> Vec<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = text.iter().map(|&byte| vec![byte]).collect();
        loop {
            let best = parts
                .windows(2)
                .enumerate()
                .filter_map(|(i, pair)| Some((*ranks.get(&(pair[0].clone(), pair[1].clone()))?, i)))
                .min();
            let Some((_, i)) = best else { return parts };
            let right = parts.remove(i + 1);
            parts[i].extend(right);
        }
    }

    fn merge(text: &[u8], ranks: &Ranks) -> Vec<Vec<u8>> {
        let rank = |left: Part, right: Part| ranks.get(&(left.text.to_vec(), right.text.to_vec())).copied();
        let mut merger = Merger::default();
        // Once for the result, once more to see that what the first run left behind does no harm.
        let first: Vec<_> =
            merger.merge(text, Fingerprinter::new(), |_| 1, rank).map(|part| part.text.to_vec()).collect();
        let second: Vec<_> =
            merger.merge(text, Fingerprinter::new(), |_| 1, rank).map(|part| part.text.to_vec()).collect();
        assert_eq!(first, second);
        first
    }

    fn letters(max: usize) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(b'a'..=b'c', 1..=max)
    }

    proptest! {
        #[test]
        fn heap_joins_what_the_definition_joins(
            // Few ranks, so that many pairs tie.
            ranks in proptest::collection::hash_map((letters(3), letters(3)), 0_u32..6, 0..40),
            text in letters(40),
        ) {
            prop_assert_eq!(merge(&text, &ranks), merge_naively(&text, &ranks));
        }

        #[test]
        fn fingerprints_follow_the_joins(text in letters(30)) {
            let hasher = Fingerprinter::new();
            let mut merger = Merger::default();
            for part in merger.merge(&text, hasher, |_| 1, |left, _| (left.text.len() < 4).then_some(0)) {
                prop_assert_eq!(part.fingerprint, hasher.of(part.text));
            }
        }
    }

    #[test]
    fn equal_ranks_join_from_the_left() {
        let ranks = Ranks::from([((b"a".to_vec(), b"a".to_vec()), 0)]);
        assert_eq!(merge(b"aaaaa", &ranks), [&b"aa"[..], b"aa", b"a"]);
    }
}
