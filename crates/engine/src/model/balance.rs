//! Balancing keys against queries.
//!
//! Attention only sees dot products of queries with keys, so element `i` of all keys of a head may be multiplied by a
//! factor, and element `i` of its queries divided by it. The norms before the cache make that free: the factors go
//! into their weights. Gemma's norms have weights that differ by orders of magnitude from element to element, great
//! for keys where they are small for queries or the reverse, and a compressed cache spreads its error evenly over the
//! elements (it rotates them): the error of a great key element then meets the great query element next to it.
//!
//! With an even error the error of a score is proportional to `|q| |k|`. Under factors `f` that is
//! `sum (q_i / f_i)^2 * sum (k_i f_i)^2`, least for `f_i^2 = |q_i| / |k_i|`, where `|q_i|` and `|k_i|` are root mean
//! squares. These are estimated from the weights alone: an element's is the weight of the norm times the size of what it
//! multiplies, which goes with the norm of the element's row in the projection ([`row_sizes`]). The two elements that the
//! rotary embedding mixes share a factor, so that it commutes with them.

/// Bounds of a factor: beyond them an element hardly counts either way.
const RANGE: std::ops::RangeInclusive<f32> = 1.0 / 256.0..=256.0;

/// Factors on the elements of keys; queries are to be divided by them. `queries` are the sizes of the query elements of
/// all layers that read the keys, `keys` those of the key elements, `[head_dim]` each.
pub fn key_factors(queries: &[Vec<f32>], keys: &[f32]) -> Vec<f32> {
    let half = keys.len() / 2;
    let square = |sizes: &[f32], i: usize| sizes[i] * sizes[i] + sizes[i + half] * sizes[i + half];
    let factors: Vec<f32> = (0..half)
        .map(|i| {
            let total: f32 = queries.iter().map(|q| square(q, i)).sum();
            let ratio = total / queries.len() as f32 / square(keys, i);
            // The fourth root of a ratio of squares. An element that is zero, or no number, is left alone.
            if ratio > 0.0 { ratio.sqrt().sqrt().clamp(*RANGE.start(), *RANGE.end()) } else { 1.0 }
        })
        .collect();
    factors.repeat(2)
}

/// Sizes of the elements of a head before its norm's weights, `[head_dim]`: the norms of the elements' rows in the
/// projection, relative to their root mean square in each head, over all heads. `squares` are squared norms, a head after
/// the other.
pub fn row_sizes(squares: &[f32], head_dim: usize) -> Vec<f32> {
    let mut sums = vec![0.0; head_dim];
    let n_heads = (squares.len() / head_dim) as f32;
    for head in squares.chunks_exact(head_dim) {
        let mean = head.iter().sum::<f32>() / head_dim as f32;
        sums.iter_mut().zip(head).for_each(|(sum, square)| *sum += square / (mean * n_heads));
    }
    sums.into_iter().map(f32::sqrt).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balanced_products_are_least() {
        let queries: Vec<f32> = (0..64).map(|i| 0.1 + (i * 7 % 13) as f32).collect();
        let keys: Vec<f32> = (0..64).map(|i| 0.1 + (i * 5 % 11) as f32).collect();
        let error = |f: &[f32]| {
            let q: f32 = queries.iter().zip(f).map(|(q, f)| (q / f).powi(2)).sum();
            let k: f32 = keys.iter().zip(f).map(|(k, f)| (k * f).powi(2)).sum();
            q * k
        };
        let factors = key_factors(std::slice::from_ref(&queries), &keys);
        assert_eq!(factors[..32], factors[32..]);
        let best = error(&factors);
        assert!(best < 0.8 * error(&[1.0; 64]));
        for i in 0..32 {
            for change in [0.9, 1.1] {
                let mut other = factors.clone();
                other[i] *= change;
                other[i + 32] *= change;
                assert!(error(&other) > best, "factor {i}");
            }
        }
    }

    #[test]
    fn rows_are_compared_within_their_heads() {
        // The second head is a hundred times the first; what counts is who is large within a head.
        let sizes = row_sizes(&[1.0, 3.0, 100.0, 300.0], 2);
        assert!(
            (sizes[0] - 0.5f32.sqrt()).abs() < 1e-6 && (sizes[1] - 1.5f32.sqrt()).abs() < 1e-6,
            "{sizes:?}"
        );
    }

    #[test]
    fn odd_weights_give_usable_factors() {
        let queries = vec![0.0, 1.0, f32::NAN, 1.0, 1e30, 0.0, 0.0, 0.0];
        let keys = [0.0, 0.0, 1.0, 1e-30, 1.0, 0.0, 0.0, 0.0];
        for f in key_factors(&[queries], &keys) {
            assert!(RANGE.contains(&f), "{f}");
        }
    }
}
