//! The `lapidary` binary.
fn main() {}
