//! A row's logits are the same bits whatever else is in the batch, on whichever threads, by whichever instructions,
//! and close to the scalar reference.

mod common;

use std::sync::Arc;

use common::{FAMILIES, Family, Random, VOCAB, model};
use lapidary_backend::{Backend, KvFormat, ReferenceBackend};
use lapidary_cpu::{ActivationMode, CpuBackend, CpuConfig};
use lapidary_engine::batch::{Input, Parent, Row};
use lapidary_engine::{Batch, KvCache, KvCacheConfig, Model, NoProbe, SequenceId, Want, Workspace};

/// Longer than two windows and a cache block.
const LENGTH: usize = 75;

fn tokens(seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..LENGTH).map(|_| random.below(VOCAB) as u32).collect()
}

/// A model with an empty cache.
struct Run<B: Backend> {
    model: Model<B>,
    cache: KvCache<B>,
    workspace: Workspace<B>,
}

impl<B: Backend> Run<B> {
    fn new(family: Family, backend: B, format: KvFormat) -> Self {
        let model = Model::load(&model(family, 7), Arc::new(backend), &mut |_, _| ()).unwrap();
        let config = KvCacheConfig { k_format: format, v_format: format, context: 1024, budget: None };
        let cache = KvCache::new(Arc::clone(model.backend()), model.config(), config).unwrap();
        Self { model, cache, workspace: Workspace::new() }
    }

    fn forward(&mut self, batch: &Batch) -> Vec<Vec<f32>> {
        let output = self.model.forward(batch, &mut self.cache, &mut self.workspace, &mut NoProbe).unwrap();
        output.logits.chunks_exact(VOCAB).map(<[f32]>::to_vec).collect()
    }

    /// Logits at every position, fed in chunks.
    fn chunked(&mut self, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
        let sequence = self.cache.create();
        let logits = tokens.chunks(chunk).flat_map(|chunk| self.forward(&rows(sequence, chunk))).collect();
        self.cache.release(sequence);
        logits
    }
}

fn rows(sequence: SequenceId, tokens: &[u32]) -> Batch {
    let mut batch = Batch::new();
    tokens.iter().for_each(|&token| batch.push(sequence, token, Want::Logits));
    batch
}

fn cpu(threads: usize, activations: ActivationMode) -> CpuBackend {
    CpuBackend::new(CpuConfig { threads, activations, ..CpuConfig::default() })
}

fn assert_same_bits(what: &str, a: &[Vec<f32>], b: &[Vec<f32>]) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (position, (a, b)) in a.iter().zip(b).enumerate() {
        let differs = a.iter().zip(b).position(|(x, y)| x.to_bits() != y.to_bits());
        assert_eq!(differs, None, "{what}: position {position} differs at this token");
    }
}

#[test]
fn chunks_and_threads_do_not_matter() {
    for family in FAMILIES {
        for activations in [ActivationMode::Q8, ActivationMode::F32] {
            let whole = Run::new(family, cpu(2, activations), KvFormat::F16).chunked(&tokens(1), LENGTH);
            for (threads, chunk) in [(1, 1), (2, 7), (3, 64), (1, LENGTH)] {
                let other =
                    Run::new(family, cpu(threads, activations), KvFormat::F16).chunked(&tokens(1), chunk);
                assert_same_bits(&format!("{family:?} in chunks of {chunk}"), &whole, &other);
            }
        }
    }
}

#[test]
fn other_sequences_in_the_batch_do_not_matter() {
    for family in FAMILIES {
        let mut run = Run::new(family, cpu(2, ActivationMode::Q8), KvFormat::F32);
        let (alone_a, alone_b) = (run.chunked(&tokens(1), 9), run.chunked(&tokens(2), LENGTH));
        let (a, b) = (run.cache.create(), run.cache.create());
        let (mut together_a, mut together_b) = (Vec::new(), Vec::new());
        let (tokens_a, tokens_b) = (tokens(1), tokens(2));
        // Chunks of unequal length, rows of both sequences mixed.
        for (chunk_a, chunk_b) in tokens_a.chunks(5).zip(tokens_b.chunks(5)) {
            let mut batch = Batch::new();
            let mut owners = Vec::new();
            for (&token_a, &token_b) in chunk_a.iter().zip(chunk_b) {
                batch.push(b, token_b, Want::Logits);
                batch.push(a, token_a, Want::Logits);
                owners.extend([b, a]);
            }
            for (owner, logits) in owners.into_iter().zip(run.forward(&batch)) {
                if owner == a { together_a.push(logits) } else { together_b.push(logits) }
            }
        }
        assert_same_bits(&format!("{family:?}, first sequence"), &alone_a, &together_a);
        assert_same_bits(&format!("{family:?}, second sequence"), &alone_b, &together_b);
    }
}

#[test]
fn forks_and_truncation_resume_exactly() {
    for family in FAMILIES {
        let mut run = Run::new(family, cpu(2, ActivationMode::Q8), KvFormat::F16);
        let tokens = tokens(3);
        let cold = run.chunked(&tokens, 16);
        let sequence = run.cache.create();
        run.forward(&rows(sequence, &tokens[..40]));
        let fork = run.cache.fork(sequence);
        // The original goes another way, not so far that its window leaves what row 40 sees; the fork must not
        // notice.
        run.forward(&rows(sequence, &[1, 2]));
        let resumed = run.forward(&rows(fork, &tokens[40..]));
        assert_same_bits(&format!("{family:?} forked"), &cold[40..], &resumed);
        run.cache.truncate(sequence, 40).unwrap();
        let resumed = run.forward(&rows(sequence, &tokens[40..]));
        assert_same_bits(&format!("{family:?} truncated"), &cold[40..], &resumed);
    }
}

#[test]
fn rows_of_a_tree_equal_serial_rows() {
    for family in FAMILIES {
        let mut run = Run::new(family, cpu(2, ActivationMode::Q8), KvFormat::F16);
        let tokens = tokens(4);
        let cold = run.chunked(&tokens[..44], 44);
        let sequence = run.cache.create();
        run.forward(&rows(sequence, &tokens[..40]));
        // The true continuation is rows 1, 3, 4 and 6; the others are branches that fail.
        let row = |token: u32, parent: Parent| Row {
            sequence,
            input: Input::Token(token),
            parent,
            want: Want::Logits,
        };
        let tree = Batch {
            rows: vec![
                row(9, Parent::Committed),
                row(tokens[40], Parent::Committed),
                row(11, Parent::Row(0)),
                row(tokens[41], Parent::Row(1)),
                row(tokens[42], Parent::Row(3)),
                row(12, Parent::Row(3)),
                row(tokens[43], Parent::Row(4)),
            ],
            embeddings: Vec::new(),
        };
        let logits = run.forward(&tree);
        let path = [1, 3, 4, 6];
        let on_path: Vec<Vec<f32>> = path.iter().map(|&r| logits[r].clone()).collect();
        assert_same_bits(&format!("{family:?} tree"), &cold[40..], &on_path);
        run.cache.accept(sequence, &path).unwrap();
        let next = run.forward(&rows(sequence, &[5]));
        let mut longer = tokens[..44].to_vec();
        longer.push(5);
        let serial = run.chunked(&longer, 45);
        assert_same_bits(&format!("{family:?} after the tree"), &serial[44..], &next);
    }
}

#[test]
fn the_cpu_agrees_with_the_scalar_reference() {
    for family in FAMILIES {
        let reference = Run::new(family, ReferenceBackend, KvFormat::F32).chunked(&tokens(5), LENGTH);
        let cpu = Run::new(family, cpu(2, ActivationMode::F32), KvFormat::F32).chunked(&tokens(5), LENGTH);
        for (position, (a, b)) in reference.iter().zip(&cpu).enumerate() {
            let scale = a.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            assert!(scale > 0.1 && scale.is_finite(), "{family:?}: the logits say nothing");
            let worst = a.iter().zip(b).fold(0.0f32, |m, (x, y)| m.max((x - y).abs()));
            assert!(worst <= 2e-4 * scale, "{family:?} at {position}: off by {worst} of {scale}");
        }
    }
}
