//! One sequence with its cache: what the command line's generation loops are made of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lapidary_backend::Backend;

use crate::batch::{Batch, Want};
use crate::error::{EngineError, Result};
use crate::kv::{KvCache, KvCacheConfig, KvStore, SequenceId};
use crate::model::{Logits, Model, Output, Workspace};
use crate::probe::{NoProbe, Probe};
use crate::speculate::{Choice, DraftTree, Draftable, RowCosts, Speculator, push_draft, walk};

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
    costs: RowCosts,
}

/// What a decoding step is to bring.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The text's last token, which is not in the cache yet.
    pub last: u32,
    /// What choosing a token needs of the logits.
    pub need: Want,
    /// Tokens that may still follow, at least 1.
    pub room: usize,
}

impl<B: Backend> Session<B> {
    /// An empty sequence; prompts are fed in batches of at most `batch_rows`.
    pub fn new(model: Arc<Model<B>>, config: KvCacheConfig, batch_rows: usize) -> Result<Self> {
        let mut cache = KvCache::new(Arc::clone(model.backend()), model.config(), config)?;
        let sequence = cache.create();
        let (workspace, batch_rows) = (Workspace::new(), batch_rows.max(1));
        let (tokens, batch, costs) = (Vec::new(), Batch::new(), RowCosts::new());
        Ok(Self { model, cache, workspace, sequence, tokens, batch, batch_rows, costs })
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

    /// One decoding step: feeds the last token with what `speculator` drafts behind it, and asks `choose` for one token after
    /// the other on the model's logits while the draft holds, at least for one. The tokens are those that feeding one after
    /// the other gives. All but the last of them are in the cache then.
    ///
    /// # Errors
    /// When the context is full, the device fails, or `choose` fails.
    pub fn step<E: From<EngineError>>(
        &mut self,
        step: Step,
        speculator: Option<&mut Speculator<B>>,
        mut choose: impl FnMut(Logits) -> Result<Choice, E>,
    ) -> Result<(), E> {
        let Some(speculator) = speculator else {
            let output = self.check_draft(step, &DraftTree::new())?;
            self.tokens.push(step.last);
            choose(output.scores(0))?;
            return Ok(());
        };
        self.tokens.push(step.last);
        let room = step.room.min((self.cache.context() + 1).saturating_sub(self.tokens.len()));
        let (text, cache, sequence) = (&self.tokens, &mut self.cache, self.sequence);
        let drafted = speculator.draft(Draftable { text, room, cache, sequence }, &self.costs);
        self.tokens.pop();
        let vocab = self.model.config().vocab;
        let drafted = drafted?;
        let mut tree = drafted.filter(|node| (drafted.nodes()[node].token as usize) < vocab);
        let begin = Instant::now();
        let output = match self.check_draft(step, &tree) {
            // The rows of a draft need room that the text alone does not.
            Err(EngineError::KvBudget { .. }) if !tree.is_empty() => {
                tree = DraftTree::new();
                speculator.withdraw();
                self.check_draft(step, &tree)?
            }
            other => other?,
        };
        let mut chosen = Vec::new();
        let path = walk(
            &tree,
            |row| output.scores(row),
            |logits| {
                let choice = choose(logits)?;
                chosen.push(choice.token);
                Ok::<_, E>(choice)
            },
        )?;
        if !tree.is_empty() {
            self.cache.accept(self.sequence, &path)?;
        }
        self.tokens.push(step.last);
        self.tokens.extend(&chosen[..chosen.len() - 1]);
        let time = begin.elapsed();
        self.costs.observe(tree.len() + 1, time);
        speculator.learn(&chosen, time, &self.costs);
        Ok(())
    }

    fn check_draft(&mut self, step: Step, tree: &DraftTree) -> Result<Output> {
        self.batch.clear();
        push_draft(&mut self.batch, self.sequence, step.last, tree, step.need);
        self.forward(&mut NoProbe)
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
