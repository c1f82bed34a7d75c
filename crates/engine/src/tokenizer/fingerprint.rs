//! Hashing of byte strings that can be joined without reading them again, and the hash table built on it.
//!
//! Merging joins two neighbouring symbols over and over; hashing the joined text each time would cost its length.
//! A polynomial hash of the joined text follows from the hashes of the halves in two multiplications instead.
//! The polynomial is evaluated modulo a prime at a random point, so a vocabulary made to collide cannot: two
//! different strings of length n collide with probability n / 2^60 over the choice of the point.

use std::hash::{BuildHasher, RandomState};

/// The Mersenne prime 2^61 - 1.
const PRIME: u64 = (1 << 61) - 1;

/// A number below 2^61 + a / (2^61 / b) that equals `a * b` modulo [`PRIME`].
fn multiply_lazily(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64 & PRIME) + (product >> 61) as u64
}

fn reduce(x: u64) -> u64 {
    let folded = (x & PRIME) + (x >> 61);
    if folded >= PRIME { folded - PRIME } else { folded }
}

fn multiply(a: u64, b: u64) -> u64 {
    reduce(multiply_lazily(a, b))
}

/// Hash of a byte string, with what is needed to append it to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    hash: u64,
    /// The evaluation point to the power of the string's length.
    shift: u64,
}

impl Fingerprint {
    /// The fingerprint of `self` followed by `right`.
    pub fn join(self, right: Self) -> Self {
        Self { hash: self.joined_hash(right), shift: multiply(self.shift, right.shift) }
    }

    /// The hash of `self` followed by `right`.
    pub fn joined_hash(self, right: Self) -> u64 {
        reduce(multiply_lazily(self.hash, right.shift) + right.hash)
    }

    /// The hash alone, which is all that looking a string up takes.
    pub fn hash(self) -> u64 {
        self.hash
    }
}

/// A hash function drawn at random.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fingerprinter {
    /// Below 2^60, so that sums of products stay below 2^63 without being reduced at every step.
    point: u64,
}

impl Fingerprinter {
    pub fn new() -> Self {
        // Any point above the byte values will do; the randomness comes from the keys of the standard hasher.
        Self { point: 256 + RandomState::new().hash_one(0_u64) % ((1 << 60) - 256) }
    }

    pub fn hash(&self, bytes: &[u8]) -> u64 {
        let lazily = bytes.iter().fold(0, |hash, &byte| multiply_lazily(hash, self.point) + u64::from(byte));
        reduce(lazily)
    }

    pub fn of(&self, bytes: &[u8]) -> Fingerprint {
        let shift = bytes.iter().fold(1, |shift, _| multiply(shift, self.point));
        Fingerprint { hash: self.hash(bytes), shift }
    }
}

/// An open-addressing table from hashes to indices; the strings themselves stay with the caller.
///
/// An entry holds 32 bits of the scrambled hash, its tag, above the index plus one; zero is an empty slot. The upper
/// bits of the tag tell the slot, so entries in ascending order go to slots in ascending order.
#[derive(Debug)]
pub(super) struct Table {
    slots: Box<[u64]>,
}

impl Table {
    /// A table of indices with their hashes; at least half of its slots stay empty.
    ///
    /// Of several indices for which `is_same` holds, only the first is kept.
    pub fn new(
        hashed: impl ExactSizeIterator<Item = (u32, u64)>,
        is_same: impl Fn(u32, u32) -> bool,
    ) -> Self {
        let n_slots = (2 * hashed.len()).next_power_of_two().max(2);
        let mut table = Self { slots: vec![0; n_slots].into_boxed_slice() };
        let entries = hashed.map(|(index, hash)| u64::from(tag_of(hash)) << 32 | (u64::from(index) + 1));
        for entry in roughly_sorted(entries.collect()) {
            if let Err(empty) = table.find(tag_in(entry), |other| is_same(other, index_in(entry))) {
                table.slots[empty] = entry;
            }
        }
        table
    }

    /// The index under `hash` that `is_match` accepts.
    pub fn get(&self, hash: u64, is_match: impl Fn(u32) -> bool) -> Option<u32> {
        self.find(tag_of(hash), is_match).ok()
    }

    /// The index that matches, or else the slot where it would have to be put.
    fn find(&self, tag: u32, is_match: impl Fn(u32) -> bool) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut at = ((u64::from(tag) * self.slots.len() as u64) >> 32) as usize;
        loop {
            let entry = self.slots[at];
            if entry == 0 {
                return Err(at);
            }
            if tag_in(entry) == tag && is_match(index_in(entry)) {
                return Ok(index_in(entry));
            }
            at = (at + 1) & mask;
        }
    }
}

fn tag_in(entry: u64) -> u32 {
    (entry >> 32) as u32
}

fn index_in(entry: u64) -> u32 {
    (entry as u32).wrapping_sub(1)
}

/// Spreads a hash, which is a small number for a short string, over 32 bits.
fn tag_of(hash: u64) -> u32 {
    const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
    let product = u128::from(hash ^ GOLDEN_RATIO) * u128::from(GOLDEN_RATIO);
    ((product as u64 ^ (product >> 64) as u64) >> 32) as u32
}

/// Sorts by the highest byte and leaves the order otherwise alone.
///
/// Entries in this order fill a table region by region. In any other order nearly each one would wait for memory.
fn roughly_sorted(entries: Vec<u64>) -> Vec<u64> {
    let group = |entry: u64| (entry >> 56) as usize;
    let mut next = [0; 257];
    for &entry in &entries {
        next[group(entry) + 1] += 1;
    }
    for i in 1..next.len() {
        next[i] += next[i - 1];
    }
    let mut sorted = vec![0; entries.len()];
    for entry in entries {
        sorted[next[group(entry)]] = entry;
        next[group(entry)] += 1;
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn joining_equals_hashing_the_whole(left: Vec<u8>, right: Vec<u8>) {
            let hasher = Fingerprinter::new();
            let joined = hasher.of(&left).join(hasher.of(&right));
            prop_assert_eq!(joined, hasher.of(&[left, right].concat()));
            prop_assert!(joined.hash() < PRIME);
        }

        #[test]
        fn table_finds_the_first_of_equal_strings(strings in proptest::collection::vec("[ab]{0,4}|[a-z]{9}", 0..300)) {
            let hasher = Fingerprinter::new();
            let hashed = strings.iter().enumerate().map(|(i, string)| (i as u32, hasher.hash(string.as_bytes())));
            let table = Table::new(hashed, |i, j| strings[i as usize] == strings[j as usize]);
            for string in &strings {
                let first = strings.iter().position(|s| s == string).unwrap();
                let found = table.get(hasher.hash(string.as_bytes()), |j| strings[j as usize] == *string);
                prop_assert_eq!(found, Some(first as u32));
            }
            prop_assert_eq!(table.slots.iter().filter(|&&slot| slot != 0).count(), {
                strings.iter().collect::<std::collections::HashSet<_>>().len()
            });
        }
    }

    #[test]
    fn multiplication_is_modulo_the_prime() {
        for (a, b) in [(PRIME - 1, PRIME - 1), (PRIME - 1, 2), (1 << 60, 1 << 60), (12_345, 67_890)] {
            let expected = u128::from(a) * u128::from(b) % u128::from(PRIME);
            assert_eq!(u128::from(multiply(a, b)), expected);
        }
    }

    #[test]
    fn empty_table_finds_nothing() {
        assert_eq!(Table::new(std::iter::empty(), |_, _| false).get(7, |_| true), None);
    }
}
