//! Drafts from a smaller model with the same tokenizer.

use std::sync::Arc;

use lapidary_backend::Backend;

use super::drafter::{DraftRequest, Drafter};
use super::tree::DraftTree;
use crate::batch::{Batch, Want};
use crate::error::{EngineError, Result};
use crate::kv::{KvCache, KvCacheConfig, SequenceId};
use crate::model::{Logits, Model, Workspace};
use crate::probe::NoProbe;
use crate::session::DEFAULT_BATCH;

/// Tokens whose probabilities are compared at each step; those beyond have hardly any.
const COMPARED: usize = 8;
/// Runners-up that are drafted beside the best token of a step.
const RUNNERS_UP: usize = 1;

/// The drafter `model=FILE`: decodes greedily with a model of its own, which keeps its own cache. Each step's runner-up is
/// offered as a branch.
pub struct ModelDrafter<B: Backend> {
    model: Arc<Model<B>>,
    cache: KvCache<B>,
    workspace: Workspace<B>,
    sequence: SequenceId,
    /// The tokens in the cache.
    fed: Vec<u32>,
    /// Tokens that its cache has room for.
    context: usize,
}

impl<B: Backend> ModelDrafter<B> {
    /// A drafter that has read nothing; it drafts for texts that fit `config.context`, at most `depth` tokens at a time.
    ///
    /// # Errors
    /// When the device refuses the cache.
    pub fn new(model: Arc<Model<B>>, config: KvCacheConfig, depth: usize) -> Result<Self> {
        let mut cache = KvCache::new(Arc::clone(model.backend()), model.config(), config)?;
        // What was drafted and not chosen is cut off again.
        cache.keep_behind(depth + 1);
        let sequence = cache.create();
        let (workspace, context) = (Workspace::new(), config.context);
        Ok(Self { model, cache, workspace, sequence, fed: Vec::new(), context })
    }

    /// Leaves in the cache what it shares with `text` but for the text's last token.
    fn rewind(&mut self, text: &[u32]) {
        let most = text.len().saturating_sub(1);
        let common = self.fed.iter().zip(&text[..most]).take_while(|(a, b)| a == b).count();
        if common < self.fed.len() && self.cache.truncate(self.sequence, common).is_err() {
            // A text of another kind than the one before: read it from the start.
            self.cache.release(self.sequence);
            self.sequence = self.cache.create();
            self.fed.clear();
            return;
        }
        self.fed.truncate(common);
    }

    /// Feeds `tokens` and returns the likeliest ones after the last with their probabilities, best first.
    fn feed(&mut self, tokens: &[u32]) -> Result<Vec<(u32, f32)>> {
        let mut likely = Vec::new();
        for chunk in tokens.chunks(DEFAULT_BATCH) {
            let mut batch = Batch::new();
            batch.extend(self.sequence, chunk, Want::Best(COMPARED));
            let output = self.model.forward(&batch, &mut self.cache, &mut self.workspace, &mut NoProbe)?;
            self.fed.extend_from_slice(chunk);
            likely = likeliest(output.scores(0));
        }
        Ok(likely)
    }

    fn chain(&mut self, request: &DraftRequest<'_, B>) -> Result<DraftTree> {
        self.rewind(request.text);
        let mut tree = DraftTree::new();
        let mut likely = self.feed(&request.text[self.fed.len()..])?;
        let (mut parent, mut chance) = (None, 1.0);
        for depth in 1..=request.depth {
            let Some(&(token, sure)) = likely.first() else { break };
            chance *= sure;
            if chance < request.floor || tree.len() >= request.nodes {
                break;
            }
            let node = tree.push(parent, token, sure);
            for &(other, sure) in likely.iter().skip(1).take(RUNNERS_UP) {
                tree.push(parent, other, sure);
            }
            parent = Some(node);
            if depth < request.depth {
                likely = self.feed(&[token])?;
            }
        }
        Ok(tree)
    }
}

/// The best tokens with their share of the probability among them.
fn likeliest(scores: Logits) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = match scores {
        Logits::All(all) => {
            crate::sample::best(all, COMPARED).into_iter().map(|id| (id, all[id as usize])).collect()
        }
        Logits::Best { ids, values } => ids.iter().copied().zip(values.iter().copied()).collect(),
    };
    best.retain(|(_, logit)| logit.is_finite());
    best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    best.truncate(COMPARED);
    let Some(&(_, max)) = best.first() else { return best };
    best.iter_mut().for_each(|(_, logit)| *logit = (*logit - max).exp());
    let sum: f32 = best.iter().map(|(_, weight)| weight).sum();
    best.iter_mut().for_each(|(_, weight)| *weight /= sum);
    best
}

impl<B: Backend> Drafter<B> for ModelDrafter<B> {
    fn name(&self) -> &str {
        "model"
    }

    fn draft(&mut self, request: &mut DraftRequest<'_, B>) -> Result<DraftTree> {
        if request.text.is_empty() || request.text.len() + request.depth > self.context {
            return Ok(DraftTree::new());
        }
        match self.chain(request) {
            // A token that only the large model has, or no room: nothing that plain decoding could not go on from.
            Err(EngineError::TokenId { .. } | EngineError::KvBudget { .. }) => {
                self.cache.release(self.sequence);
                self.sequence = self.cache.create();
                self.fed.clear();
                Ok(DraftTree::new())
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likeliest_tokens_are_the_same_from_all_and_from_the_best() {
        let all: Vec<f32> = (0..100).map(|i| ((i * 37) % 100) as f32 / 10.0).collect();
        let ids: Vec<u32> = (0..100).filter(|&i| all[i as usize] >= 9.0).collect();
        let values: Vec<f32> = ids.iter().map(|&i| all[i as usize]).collect();
        let few = likeliest(Logits::Best { ids: &ids, values: &values });
        assert_eq!(few, likeliest(Logits::All(&all)));
        assert_eq!((few.len(), few[0].0), (COMPARED, 27));
        assert!((few.iter().map(|t| t.1).sum::<f32>() - 1.0).abs() < 1e-6);
        assert!(likeliest(Logits::All(&[f32::NAN; 3])).is_empty());
    }
}
