//! One sequence with its cache: what the command line's generation loops are made of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lapidary_backend::Backend;

use crate::batch::{Batch, Want};
use crate::error::Result;
use crate::kv::{KvCache, KvCacheConfig, KvStore, SequenceId};
use crate::model::{Model, Output, Workspace};
use crate::probe::{NoProbe, Probe};

/// Rows that a prompt is fed in.
pub const DEFAULT_BATCH: usize = 512;

/// One sequence of a model.
pub struct Session<B: Backend> {
    model: Arc<Model<B>>,
    cache: KvCache<B>,
    workspace: Workspace<B>,
    sequence: SequenceId,
    /// Tokens of the sequence.
    tokens: Vec<u32>,
    batch: Batch,
    batch_rows: usize,
}

impl<B: Backend> Session<B> {
    /// An empty sequence; prompts are fed in batches of at most `batch_rows`.
    pub fn new(model: Arc<Model<B>>, config: KvCacheConfig, batch_rows: usize) -> Result<Self> {
        let mut cache = KvCache::new(Arc::clone(model.backend()), model.config(), config)?;
        let sequence = cache.create();
        let (workspace, batch_rows) = (Workspace::new(), batch_rows.max(1));
        Ok(Self { model, cache, workspace, sequence, tokens: Vec::new(), batch: Batch::new(), batch_rows })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model<B>> {
        &self.model
    }

    /// Positions in the sequence.
    pub fn length(&self) -> usize {
        self.cache.length(self.sequence)
    }

    /// Bytes of keys and values.
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes_in_use()
    }

    /// Starts over with an empty sequence.
    pub fn reset(&mut self) {
        self.cache.release(self.sequence);
        self.sequence = self.cache.create();
        self.tokens.clear();
    }

    /// Starts over with as much of `prompt` as is [kept](Self::keep) in memory or in `store`; says how many tokens that
    /// is, fewer than the prompt has. The others are to be [fed](Self::feed). Results are the same bits as without.
    ///
    /// # Errors
    /// When the device fails.
    pub fn start(&mut self, prompt: &[u32], store: Option<&KvStore>) -> Result<usize> {
        self.cache.release(self.sequence);
        let mut resumed = self.cache.resume(prompt, &None);
        if let Some(store) = store
            && let Some(restored) = self.cache.restore(prompt, &None, store, resumed.1)?
        {
            self.cache.release(resumed.0);
            resumed = restored;
        }
        self.sequence = resumed.0;
        self.tokens = prompt[..resumed.1].to_vec();
        Ok(resumed.1)
    }

    /// Keeps the sequence's present state for later prompts that begin as it does. This copies nothing.
    pub fn keep(&mut self) {
        self.cache.remember(self.sequence, &self.tokens, &None);
    }

    /// Has everything kept written to `store`, in the background.
    ///
    /// # Errors
    /// When the device fails.
    pub fn persist(&self, store: &KvStore) -> Result<()> {
        self.cache.persist_remembered(store)
    }

    /// Feeds tokens and returns the logits after the last one. Stops early, with no logits, when `cancel` is set.
    pub fn feed(&mut self, tokens: &[u32], cancel: &AtomicBool) -> Result<Option<Output>> {
        self.feed_wanting(tokens, Want::Logits, cancel)
    }

    /// Feeds tokens and returns what is wanted of the last one. Stops early, with nothing, when `cancel` is set.
    pub fn feed_wanting(
        &mut self,
        tokens: &[u32],
        want_last: Want,
        cancel: &AtomicBool,
    ) -> Result<Option<Output>> {
        let mut output = None;
        let n_batches = tokens.len().div_ceil(self.batch_rows);
        for (i, chunk) in tokens.chunks(self.batch_rows).enumerate() {
            if cancel.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let want = if i + 1 == n_batches { want_last } else { Want::Nothing };
            self.batch.clear();
            self.batch.extend(self.sequence, chunk, want);
            output = Some(self.forward(&mut NoProbe)?);
            self.tokens.extend_from_slice(chunk);
        }
        Ok(output)
    }

    /// Feeds tokens and gives `each` the logits after every one of them: `each(index, logits)`.
    pub fn feed_all(
        &mut self,
        tokens: &[u32],
        probe: &mut impl Probe,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let mut done = 0;
        for chunk in tokens.chunks(self.batch_rows) {
            self.batch.clear();
            chunk.iter().for_each(|&token| self.batch.push(self.sequence, token, Want::Logits));
            let output = self.forward(probe)?;
            self.tokens.extend_from_slice(chunk);
            (0..chunk.len()).for_each(|i| each(done + i, output.logits(i)));
            done += chunk.len();
        }
        Ok(())
    }

    fn forward(&mut self, probe: &mut impl Probe) -> Result<Output> {
        self.model.forward(&self.batch, &mut self.cache, &mut self.workspace, probe)
    }
}
