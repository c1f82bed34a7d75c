//! What a source of drafts is.

use lapidary_backend::Backend;

use super::tree::DraftTree;
use crate::error::Result;
use crate::kv::{KvCache, SequenceId};

/// A question to a drafter: what comes next?
pub struct DraftRequest<'a, B: Backend> {
    /// The text so far, its last token not yet in the model's cache.
    pub text: &'a [u32],
    /// Tokens that a path may have.
    pub depth: usize,
    /// Nodes that are of use.
    pub nodes: usize,
    /// A path whose probability falls below this is not worth its rows.
    pub floor: f32,
    /// The cache of the model that checks the draft.
    pub cache: &'a mut KvCache<B>,
    /// The text's sequence in it, one position shorter than the text.
    pub sequence: SequenceId,
}

/// Guesses what comes next. A drafter can only change the speed of decoding: the model's own choice is what is emitted.
pub trait Drafter<B: Backend>: Send {
    /// The name under which it is chosen and reported.
    fn name(&self) -> &str;

    /// Guesses what follows `request.text`. Texts of successive calls usually grow, but any text may come.
    ///
    /// # Errors
    /// When its device fails.
    fn draft(&mut self, request: &mut DraftRequest<'_, B>) -> Result<DraftTree>;
}
