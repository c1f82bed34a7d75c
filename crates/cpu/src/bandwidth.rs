//! The machine's read bandwidth, measured: the limit of decoding.

use std::time::Instant;

use crate::pool::Pool;

/// Far larger than the caches of a machine of this class.
const BYTES: usize = 512 << 20;
/// Bytes a task reads.
const CHUNK: usize = 4 << 20;
const RUNS: usize = 5;

/// Bytes a second that the pool's threads read from memory together: the best of several passes over a buffer.
pub fn read_bandwidth(pool: &Pool) -> f64 {
    let words = vec![1u64; BYTES / 8];
    let chunks: Vec<&[u64]> = words.chunks(CHUNK / 8).collect();
    let pass = || {
        let begin = Instant::now();
        pool.run(chunks.len(), |index, _| {
            std::hint::black_box(sum(chunks[index]));
        });
        BYTES as f64 / begin.elapsed().as_secs_f64()
    };
    (0..RUNS).map(|_| pass()).fold(0.0, f64::max)
}

/// Several independent sums, so that loads and not additions are what is waited for.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for chunk in words.as_chunks::<32>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}
