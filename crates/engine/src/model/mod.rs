//! The model: configuration, weights, the forward pass.

mod balance;
mod config;
mod fingerprint;
mod forward;
mod head;
mod metadata;
mod screening;
mod traffic;
mod weights;
mod workspace;

use std::sync::Arc;

use lapidary_backend::Backend;
use lapidary_gguf::Gguf;

pub use config::{Architecture, CacheGroup, CacheSlot, Config, ExpertSpec, LayerSpec, RopeSpec};
pub use fingerprint::fingerprint;
pub use forward::{Logits, Output};
pub use head::{HeadFormat, HeadOptions};
pub use screening::{MOST_ROWS as MOST_SCREENED_ROWS, Screen, ScreenStats};
pub use traffic::Traffic;
pub use weights::{Progress, Weights};
pub use workspace::Workspace;

use crate::error::Result;
use screening::Screening;

/// A loaded model.
pub struct Model<B: Backend> {
    config: Config,
    weights: Weights<B>,
    backend: Arc<B>,
}

impl<B: Backend> Model<B> {
    /// Loads a model onto a device. `progress` is told after each layer how many of how many are there.
    ///
    /// # Errors
    /// When the file is no Gemma model that this engine runs, or the device refuses it.
    pub fn load(gguf: &Gguf, backend: Arc<B>, progress: Progress) -> Result<Self> {
        Self::load_with(gguf, backend, &HeadOptions::default(), progress)
    }

    /// As [`load`](Self::load), with the output matrix in a format of its own.
    ///
    /// # Errors
    /// As [`load`](Self::load), and when the head cannot take that format.
    pub fn load_with(gguf: &Gguf, backend: Arc<B>, head: &HeadOptions, progress: Progress) -> Result<Self> {
        let config = Config::from_gguf(gguf)?;
        let weights = Weights::load(gguf, &config, head, &*backend, progress)?;
        Ok(Self { config, weights, backend })
    }

    /// Sizes and constants.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What a coarse copy of the output matrix saved so far.
    pub fn screen_stats(&self) -> ScreenStats {
        self.weights.screening.as_ref().map(Screening::stats).unwrap_or_default()
    }

    /// Bytes that the coarse copy of the output matrix takes, or will take once it is made.
    pub fn screen_bytes(&self) -> usize {
        self.weights.screening.as_ref().map_or(0, Screening::reserved_bytes)
    }

    /// Makes the coarse copy now where it would be made later.
    ///
    /// # Errors
    /// When the device fails.
    pub fn prepare_screen(&self) -> Result<()> {
        match &self.weights.screening {
            Some(screening) => screening.make(&*self.backend, self.weights.stored_head()),
            None => Ok(()),
        }
    }

    /// The device.
    pub fn backend(&self) -> &Arc<B> {
        &self.backend
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapidary_backend::ReferenceBackend;

    #[test]
    fn a_model_can_be_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Model<ReferenceBackend>>();
    }
}
