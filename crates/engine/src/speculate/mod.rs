//! Speculative decoding: several tokens from one pass, and never another token.
//!
//! A [`Drafter`] guesses what comes next, as a [`DraftTree`]. The text's last token and the drafted ones go through
//! [`Model::forward`](crate::Model::forward) as rows of one batch ([`push_draft`]), each seeing its own path; the
//! sampler is then asked for one token after the other on the model's logits ([`walk`]), for as long as what it chooses
//! is in the tree. A row's logits do not depend on the rows beside it, so the text is that of plain decoding, bit for bit,
//! for any sampler. [`KvCache::accept`](crate::KvCache::accept) keeps the path.
//!
//! A row more costs time, on a processor that is busy computing nearly as much as a pass of its own. [`RowCosts`] measures
//! that, [`Calibration`] learns how often the drafter is right, and a [`Speculator`] checks what promises the most tokens a
//! second, switching off a drafter that loses time.

mod calibration;
mod cost;
mod drafter;
mod lookup;
mod model;
mod plan;
mod speculator;
mod stats;
mod switch;
mod tree;
mod verify;

pub use calibration::Calibration;
pub use cost::RowCosts;
pub use drafter::{DraftRequest, Drafter};
pub use lookup::LookupDrafter;
pub use model::ModelDrafter;
pub use speculator::{Draftable, Speculator, SpeculatorConfig};
pub use stats::SpeculationStats;
pub use tree::{DraftNode, DraftTree};
pub use verify::{Choice, push_draft, walk};
