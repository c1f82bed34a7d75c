//! The operations a Gemma forward pass is made of.
//!
//! [`Backend`] names the operations and states their contracts; [`reference`](mod@reference) computes each of them in plain
//! scalar code written for reading; [`conformance`] holds any other backend to that reference on random shapes;
//! [`profile`] measures the operations of any backend.
//! A backend owns four kinds of objects: activation [buffers](Backend::Buffer), prepared
//! [weight matrices](Backend::Matrix), the [rows](Backend::Rows) of the batch in flight, and pools of
//! [key/value blocks](Backend::KvPool).
//!
//! All activations are row-major `f32`. An operation that works on columns of a wider buffer takes a
//! [`Columns`] view. Operations are enqueued in call order: a backend may run them at once or record them.

pub mod conformance;
pub mod error;
pub mod kv;
pub mod ops;
pub mod profile;
pub mod reference;
pub mod rows;
mod traits;

pub use error::{BackendError, Result};
pub use kv::{KvFormat, KvPoolSpec};
pub use ops::*;
pub use profile::Profiled;
pub use reference::ReferenceBackend;
pub use rows::{GroupRows, RowBatch, RowView};
pub use traits::Backend;
