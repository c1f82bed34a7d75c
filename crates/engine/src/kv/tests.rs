//! The cache against a plain list of tags a sequence, under random steps.

use lapidary_backend::{Attention, HeadLayout, ReferenceBackend};
use proptest::prelude::*;

use super::*;
use crate::batch::{Parent, Want};
use crate::model::Architecture;

const WINDOWS: [Option<usize>; 3] = [None, Some(5), Some(40)];
const LAYOUT: HeadLayout = HeadLayout { heads: 1, kv_heads: 1, head_dim: 2 };

/// A cache whose vectors are tags, beside what each sequence should hold.
struct Checked {
    cache: KvCache<ReferenceBackend>,
    expected: Vec<(SequenceId, Vec<f32>)>,
    next_tag: f32,
}

impl Checked {
    fn new() -> Self {
        let group = |window| CacheGroup { window, kv_heads: 1, head_dim: 2, layers: 1 };
        let config = Config {
            architecture: Architecture::Gemma4,
            hidden: 2,
            vocab: 1,
            context_length: 1000,
            eps: 1e-6,
            softcap: None,
            per_layer_dim: None,
            ropes: Vec::new(),
            cache_groups: WINDOWS.map(group).to_vec(),
            layers: Vec::new(),
        };
        let kv =
            KvCacheConfig { k_format: KvFormat::F32, v_format: KvFormat::F32, context: 1000, budget: None };
        let cache = KvCache::new(Arc::new(ReferenceBackend), &config, kv).unwrap();
        Self { cache, expected: Vec::new(), next_tag: 1.0 }
    }

    /// Stores a fresh tag for each row and checks that every row sees the tags of its own path.
    fn run(&mut self, rows: &[Row], paths: &[Vec<f32>]) -> (Vec<f32>, PreparedRows) {
        let prepared = self.cache.prepare(rows).unwrap();
        let tags: Vec<f32> = (0..rows.len()).map(|i| self.next_tag + i as f32).collect();
        self.next_tag += rows.len() as f32;
        // Queries of zero make attention the plain average of the visible values.
        let qkv: Vec<f32> = tags.iter().flat_map(|&tag| [0.0, 0.0, 0.0, 0.0, tag, tag * tag]).collect();
        for (g, window) in WINDOWS.into_iter().enumerate() {
            let pool = self.cache.pool_mut(g);
            ReferenceBackend.kv_store(&qkv, LAYOUT, &prepared.batch, g, pool, 0).unwrap();
            let attention = Attention { layout: LAYOUT, scale: 1.0, window, group: g, layer: 0 };
            let mut out = vec![0.0; 2 * rows.len()];
            let pool = self.cache.pool(g);
            ReferenceBackend.attention(&qkv, &attention, &prepared.batch, pool, &mut out).unwrap();
            for (r, path) in paths.iter().enumerate() {
                let mut seen = path.clone();
                seen.push(tags[r]);
                let seen = &seen[seen.len().saturating_sub(window.unwrap_or(usize::MAX))..];
                let mean = |f: fn(f64) -> f64| {
                    seen.iter().map(|&t| f(f64::from(t))).sum::<f64>() / seen.len() as f64
                };
                for (found, expected) in [(out[2 * r], mean(|t| t)), (out[2 * r + 1], mean(|t| t * t))] {
                    let error = (f64::from(found) - expected).abs() / expected;
                    assert!(error < 1e-5, "window {window:?}, row {r}: {found} for {expected}");
                }
            }
        }
        (tags, prepared)
    }

    fn append(&mut self, index: usize, n: usize) {
        let (id, path) = self.expected[index].clone();
        let rows = vec![row(id, Parent::Previous); n];
        let first = self.next_tag;
        let paths: Vec<Vec<f32>> =
            (0..n).map(|i| path.iter().copied().chain((0..i).map(|j| first + j as f32)).collect()).collect();
        let (tags, prepared) = self.run(&rows, &paths);
        self.cache.commit(&prepared.chains);
        self.expected[index].1.extend(tags);
    }

    /// Runs a random tree and keeps the path to its last row, or nothing.
    fn branch(&mut self, index: usize, parents: &[usize], keep: bool) {
        let (id, path) = self.expected[index].clone();
        let first = self.next_tag;
        let (mut rows, mut paths): (Vec<Row>, Vec<Vec<f32>>) = (Vec::new(), Vec::new());
        let mut branches: Vec<Vec<usize>> = Vec::new();
        for (i, &parent) in parents.iter().enumerate() {
            // 0 stands for the committed text, p for row p - 1.
            let parent = parent % (i + 1);
            let before = if parent == 0 { Vec::new() } else { branches[parent - 1].clone() };
            paths.push(path.iter().copied().chain(before.iter().map(|&j| first + j as f32)).collect());
            rows.push(row(id, if parent == 0 { Parent::Committed } else { Parent::Row(parent - 1) }));
            branches.push(before.into_iter().chain([i]).collect());
        }
        let (tags, _) = self.run(&rows, &paths);
        if !keep {
            return;
        }
        let kept = branches.last().unwrap();
        self.cache.accept(id, kept).unwrap();
        self.expected[index].1.extend(kept.iter().map(|&i| tags[i]));
    }

    fn truncate(&mut self, index: usize, length: usize) {
        let (id, path) = &mut self.expected[index];
        match self.cache.truncate(*id, length) {
            Ok(()) => path.truncate(length),
            Err(EngineError::WindowReleased { .. }) => assert!(length < path.len()),
            Err(other) => panic!("{other}"),
        }
        assert_eq!(self.cache.length(*id), path.len());
    }
}

fn row(sequence: SequenceId, parent: Parent) -> Row {
    Row { sequence, input: Input::Token(0), parent, want: Want::Nothing }
}

#[derive(Clone, Debug)]
enum Step {
    Create,
    Append(usize, usize),
    Branch(usize, Vec<usize>, bool),
    Fork(usize),
    Truncate(usize, usize),
    Release(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let index = 0..100usize;
    prop_oneof![
        1 => Just(Step::Create),
        5 => (index.clone(), 1..50usize).prop_map(|(i, n)| Step::Append(i, n)),
        3 => (index.clone(), prop::collection::vec(0..100usize, 1..12), any::<bool>()).prop_map(|(i, p, keep)| Step::Branch(i, p, keep)),
        2 => index.clone().prop_map(Step::Fork),
        2 => (index.clone(), 0..60usize).prop_map(|(i, n)| Step::Truncate(i, n)),
        1 => index.prop_map(Step::Release),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn sequences_behave_like_lists(steps in prop::collection::vec(step(), 1..40)) {
        let mut checked = Checked::new();
        for step in steps {
            let n = checked.expected.len();
            match step {
                Step::Create => {
                    let id = checked.cache.create();
                    checked.expected.push((id, Vec::new()));
                }
                _ if n == 0 => {}
                Step::Append(i, count) if checked.expected[i % n].1.len() < 400 => checked.append(i % n, count),
                Step::Append(..) => {}
                Step::Branch(i, parents, keep) => checked.branch(i % n, &parents, keep),
                Step::Fork(i) => {
                    let (id, path) = checked.expected[i % n].clone();
                    let fork = checked.cache.fork(id);
                    checked.expected.push((fork, path));
                }
                Step::Truncate(i, back) => {
                    let length = checked.expected[i % n].1.len().saturating_sub(back);
                    checked.truncate(i % n, length);
                }
                Step::Release(i) => {
                    let (id, _) = checked.expected.swap_remove(i % n);
                    checked.cache.release(id);
                }
            }
        }
        for (id, _) in std::mem::take(&mut checked.expected) {
            checked.cache.release(id);
        }
        prop_assert_eq!(checked.cache.bytes_in_use(), 0);
    }
}

#[test]
fn a_sliding_window_keeps_a_bounded_number_of_blocks() {
    let mut checked = Checked::new();
    let id = checked.cache.create();
    checked.expected.push((id, Vec::new()));
    (0..9).for_each(|_| checked.append(0, 50));
    let blocks = |g: usize| checked.cache.groups[g].allocator.in_use();
    assert_eq!(blocks(0), 450usize.div_ceil(BLOCK_LEN));
    assert!(blocks(1) <= 2 && blocks(2) <= 3);
}

#[test]
fn the_context_is_a_limit() {
    let mut checked = Checked::new();
    let id = checked.cache.create();
    let rows = vec![row(id, Parent::Previous); 1001];
    let error = checked.cache.prepare(&rows).err().unwrap();
    assert!(matches!(error, EngineError::ContextFull { needed: 1001, context: 1000 }));
    assert_eq!(checked.cache.length(id), 0);
}
