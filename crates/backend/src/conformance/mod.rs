//! The test suite of a backend: every operation against the scalar reference, on random shapes.
//!
//! Each function of this module checks one operation of any backend and panics with a description of the first
//! difference. Shapes are chosen to be awkward: sizes off every tile, one row and many, windows that wrap, blocks
//! in random order, draft trees, experts without rows. Each check also runs every row by itself and demands the
//! bits that the row had in its batch.
//!
//! ```no_run
//! # fn check<B: lapidary_backend::Backend>(backend: &B) {
//! use lapidary_backend::conformance::{self, Activations, Tolerance};
//! let tolerance = Tolerance { relative: 4e-6, activations: Activations::Exact };
//! conformance::run(backend, &tolerance);
//! # }
//! ```

mod attention;
mod cache;
mod compare;
mod experts;
mod norms;
mod pointwise;
mod products;
mod random;
mod rotation;

pub use attention::{
    attention, attention_ignores_block_layout, attention_keeps_rows_apart, attention_of_trees,
};
pub use cache::{kv_blocks_travel, kv_copy, kv_store_refuses_undefined};
pub use experts::{combine, expert_linear, route, route_breaks_ties};
pub use norms::{add_norm, rms_norm};
pub use pointwise::{buffers, embed, gated_activation, gather, row_dots, softcap};
pub use products::{linear, linear_of_every_type};
pub use rotation::{head_norm_rope, rope_table};

use crate::Backend;

/// How far a backend's results may lie from the reference.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Error of a result relative to the magnitude of the numbers it is made of (for a sum: the sum of the terms'
    /// magnitudes). A few units of `f32` rounding for a backend that computes in `f32`.
    pub relative: f32,
    /// What products may do to activations.
    pub activations: Activations,
}

/// Whether products with quantised weights may round activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// They may not.
    Exact,
    /// To 8-bit integers with one scale for each block of the weight type (32 or 256 columns).
    Rounded8,
}

/// A check of one operation.
pub type Check<B> = fn(&B, &Tolerance);

/// Every check with its name.
pub fn checks<B: Backend>() -> Vec<(&'static str, Check<B>)> {
    vec![
        ("buffers", buffers::<B>),
        ("embed", embed::<B>),
        ("gather", gather::<B>),
        ("rms_norm", rms_norm::<B>),
        ("add_norm", add_norm::<B>),
        ("row_dots", row_dots::<B>),
        ("linear", linear::<B>),
        ("linear_of_every_type", linear_of_every_type::<B>),
        ("rope_table", rope_table::<B>),
        ("head_norm_rope", head_norm_rope::<B>),
        ("kv_copy", kv_copy::<B>),
        ("kv_blocks_travel", kv_blocks_travel::<B>),
        ("kv_store_refuses_undefined", kv_store_refuses_undefined::<B>),
        ("attention", attention::<B>),
        ("attention_of_trees", attention_of_trees::<B>),
        ("attention_ignores_block_layout", attention_ignores_block_layout::<B>),
        ("attention_keeps_rows_apart", attention_keeps_rows_apart::<B>),
        ("gated_activation", gated_activation::<B>),
        ("softcap", softcap::<B>),
        ("route", route::<B>),
        ("route_breaks_ties", route_breaks_ties::<B>),
        ("expert_linear", expert_linear::<B>),
        ("combine", combine::<B>),
    ]
}

/// Runs every check.
///
/// # Panics
/// At the first difference from the reference.
pub fn run<B: Backend>(backend: &B, tolerance: &Tolerance) {
    for (_, check) in checks::<B>() {
        check(backend, tolerance);
    }
}
