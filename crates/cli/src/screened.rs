//! What a screened output matrix saved, as reports show it.

use std::fmt;

use lapidary_engine::model::ScreenStats;
use serde::Serialize;

use crate::output::{bytes, count};

/// The work of the coarse copy of the output matrix.
#[derive(Clone, Copy, Serialize)]
pub struct ScreenReport {
    /// Bytes of the copy.
    bytes: usize,
    /// Tokens whose logits were found with it.
    tokens: usize,
    /// Logits computed exactly for those, together.
    rescored: usize,
    /// Tokens for which the whole matrix was read because the bounds did not suffice.
    declined: usize,
}

impl ScreenReport {
    /// `None` when there is no copy.
    pub fn of(stats: ScreenStats) -> Option<Self> {
        let ScreenStats { bytes, screened: tokens, rescored, declined } = stats;
        (bytes > 0).then_some(Self { bytes, tokens, rescored, declined })
    }
}

impl fmt::Display for ScreenReport {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let a_token = self.rescored / self.tokens.max(1);
        write!(f, "head screened ({}): ", bytes(self.bytes as u64))?;
        write!(f, "{} tokens, {} logits rescored for each", self.tokens, count(a_token as u64))?;
        if self.declined > 0 {
            write!(f, "; {} tokens read the whole head", self.declined)?;
        }
        Ok(())
    }
}
