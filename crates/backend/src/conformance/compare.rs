//! Comparing results.

/// Panics when a result is further from the expected one than `bound(index)`. NaN matches NaN.
pub(super) fn close(what: &str, found: &[f32], expected: &[f32], bound: impl Fn(usize) -> f32) {
    assert_eq!(found.len(), expected.len(), "{what}: number of results");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let same = found == expected || (found.is_nan() && expected.is_nan());
        let error = (found - expected).abs();
        assert!(
            same || error <= bound(i),
            "{what}: element {i} is {found}, the reference {expected}; the error {error:e} is above {:e}",
            bound(i)
        );
    }
}

/// Panics when two results differ in a bit. NaN matches NaN.
pub(super) fn same_bits(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}: number of results");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
            "{what}: element {i} is {found:e} ({:#010x}) instead of {expected:e} ({:#010x})",
            found.to_bits(),
            expected.to_bits()
        );
    }
}
