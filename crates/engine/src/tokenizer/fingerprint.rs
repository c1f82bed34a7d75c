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
/// A slot holds the upper half of the scrambled hash above the index plus one; zero is an empty slot.
#[derive(Debug)]
pub(super) struct Table {
    slots: Box<[u64]>,
}

impl Table {
    /// An empty table for up to `n` entries; at least half of its slots stay empty.
    pub fn with_capacity(n: usize) -> Self {
        Self { slots: vec![0; (2 * n).next_power_of_two()].into_boxed_slice() }
    }

    /// Adds `index` under `hash`, unless `is_same` accepts an index already there, which is then returned.
    pub fn insert(&mut self, hash: u64, index: u32, is_same: impl Fn(u32) -> bool) -> Option<u32> {
        match self.find(hash, is_same) {
            Ok(existing) => Some(existing),
            Err(empty) => {
                self.slots[empty] = u64::from(tag(scramble(hash))) << 32 | (u64::from(index) + 1);
                None
            }
        }
    }

    /// The index under `hash` that `is_same` accepts.
    pub fn get(&self, hash: u64, is_same: impl Fn(u32) -> bool) -> Option<u32> {
        self.find(hash, is_same).ok()
    }

    /// The index that matches, or else the slot where it would have to be put.
    fn find(&self, hash: u64, is_same: impl Fn(u32) -> bool) -> Result<u32, usize> {
        let scrambled = scramble(hash);
        let mask = self.slots.len() - 1;
        let mut at = scrambled as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return Err(at);
            }
            let index = (slot as u32).wrapping_sub(1);
            if (slot >> 32) as u32 == tag(scrambled) && is_same(index) {
                return Ok(index);
            }
            at = (at + 1) & mask;
        }
    }
}

fn tag(scrambled: u64) -> u32 {
    (scrambled >> 32) as u32
}

/// Spreads the hashes of short strings, which are small numbers, over all 64 bits.
fn scramble(hash: u64) -> u64 {
    const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
    let product = u128::from(hash ^ GOLDEN_RATIO) * u128::from(GOLDEN_RATIO);
    product as u64 ^ (product >> 64) as u64
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
        fn table_finds_what_was_put_in(strings: Vec<Vec<u8>>) {
            let hasher = Fingerprinter::new();
            let mut table = Table::with_capacity(strings.len());
            for (i, string) in strings.iter().enumerate() {
                let first = strings.iter().position(|s| s == string).unwrap();
                let existing = table.insert(hasher.hash(string), i as u32, |j| strings[j as usize] == *string);
                prop_assert_eq!(existing, (first < i).then_some(first as u32));
            }
            for string in &strings {
                let first = strings.iter().position(|s| s == string).unwrap();
                let found = table.get(hasher.hash(string), |j| strings[j as usize] == *string);
                prop_assert_eq!(found, Some(first as u32));
            }
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
        assert_eq!(Table::with_capacity(0).get(7, |_| true), None);
    }
}
