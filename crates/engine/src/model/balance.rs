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
//! squares. The weights of the norms stand for them, as what they multiply has about the same size in every element.
//! The two elements that the rotary embedding mixes share a factor, so that it commutes with them.

/// Bounds of a factor: beyond them an element hardly counts either way.
const RANGE: std::ops::RangeInclusive<f32> = 1.0 / 256.0..=256.0;

/// Factors on the elements of keys; queries are to be divided by them. `query_norms` are the weights of the query norms
/// of all layers that read the keys, `key_norm` those of the key norm, `[head_dim]` each.
pub fn key_factors(query_norms: &[Vec<f32>], key_norm: &[f32]) -> Vec<f32> {
    let half = key_norm.len() / 2;
    let square = |weights: &[f32], i: usize| weights[i] * weights[i] + weights[i + half] * weights[i + half];
    let factors: Vec<f32> = (0..half)
        .map(|i| {
            let queries: f32 = query_norms.iter().map(|q| square(q, i)).sum();
            let ratio = queries / query_norms.len() as f32 / square(key_norm, i);
            // The fourth root of a ratio of squares. An element that is zero, or no number, is left alone.
            if ratio > 0.0 { ratio.sqrt().sqrt().clamp(*RANGE.start(), *RANGE.end()) } else { 1.0 }
        })
        .collect();
    factors.repeat(2)
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
    fn odd_weights_give_usable_factors() {
        let queries = vec![0.0, 1.0, f32::NAN, 1.0, 1e30, 0.0, 0.0, 0.0];
        let keys = [0.0, 0.0, 1.0, 1e-30, 1.0, 0.0, 0.0, 0.0];
        for f in key_factors(&[queries], &keys) {
            assert!(RANGE.contains(&f), "{f}");
        }
    }
}
