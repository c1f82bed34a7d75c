//! A run that goes on from cached positions gives the bits of a cold one: from memory and from disk, at any length, in
//! every format, with windows that wrapped.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use common::{FAMILIES, Family, Random, VOCAB, model};
use lapidary_backend::KvFormat;
use lapidary_cpu::{ActivationMode, CpuBackend, CpuConfig};
use lapidary_engine::kv::store::Warn;
use lapidary_engine::kv::{KvSize, KvStore};
use lapidary_engine::{
    Batch, EngineError, KvCache, KvCacheConfig, Model, NoProbe, SequenceId, Session, Want, Workspace,
};

const PAIRS: [(KvFormat, KvFormat); 5] = [
    (KvFormat::F32, KvFormat::F32),
    (KvFormat::F16, KvFormat::Tq8),
    (KvFormat::Tq8, KvFormat::Tq4),
    (KvFormat::Tq5, KvFormat::Tq6),
    (KvFormat::Tq4, KvFormat::F16),
];

fn load(family: Family) -> Arc<Model<CpuBackend>> {
    let config = CpuConfig { threads: 2, activations: ActivationMode::Q8, ..CpuConfig::default() };
    Arc::new(Model::load(&model(family, 7), Arc::new(CpuBackend::new(config)), &mut |_, _| ()).unwrap())
}

fn config((k_format, v_format): (KvFormat, KvFormat), budget: Option<usize>) -> KvCacheConfig {
    KvCacheConfig { k_format, v_format, context: 4096, budget }
}

struct Run {
    model: Arc<Model<CpuBackend>>,
    cache: KvCache<CpuBackend>,
    workspace: Workspace<CpuBackend>,
}

impl Run {
    fn new(model: &Arc<Model<CpuBackend>>, config: KvCacheConfig) -> Self {
        let cache = KvCache::new(Arc::clone(model.backend()), model.config(), config).unwrap();
        Self { model: Arc::clone(model), cache, workspace: Workspace::new() }
    }

    /// Feeds tokens in chunks; the bits of the logits after the last one.
    fn feed(&mut self, id: SequenceId, tokens: &[u32], chunk: usize) -> Result<Vec<u32>, EngineError> {
        let mut bits = Vec::new();
        for chunk in tokens.chunks(chunk) {
            let mut batch = Batch::new();
            batch.extend(id, chunk, Want::Logits);
            let output = self.model.forward(&batch, &mut self.cache, &mut self.workspace, &mut NoProbe)?;
            bits = output.logits(0).iter().map(|x| x.to_bits()).collect();
        }
        Ok(bits)
    }

    fn cold(&mut self, tokens: &[u32]) -> Vec<u32> {
        let id = self.cache.create();
        let bits = self.feed(id, tokens, 64).unwrap();
        self.cache.release(id);
        bits
    }
}

fn tokens(random: &mut Random, n: usize) -> Vec<u32> {
    (0..n).map(|_| random.below(VOCAB) as u32).collect()
}

fn quiet() -> Warn {
    Arc::new(|warning| panic!("{warning}"))
}

fn open(dir: &Path) -> KvStore {
    KvStore::open(dir, 1 << 30, [1; 32], quiet()).unwrap()
}

#[test]
fn resumed_prompts_give_the_bits_of_cold_ones() {
    let mut random = Random::new(11);
    for family in FAMILIES {
        let model = load(family);
        for pair in PAIRS {
            let (mut warm, mut cold) =
                (Run::new(&model, config(pair, None)), Run::new(&model, config(pair, None)));
            let mut texts: Vec<Vec<u32>> = Vec::new();
            let mut reused = 0;
            for round in 0..24 {
                // A new text, one that goes on where another was left or goes its own way somewhere, or the same again.
                let mut text = match random.below(4) {
                    0 => Vec::new(),
                    _ if texts.is_empty() => Vec::new(),
                    _ => {
                        let old = &texts[random.below(texts.len())];
                        old[..1 + random.below(old.len())].to_vec()
                    }
                };
                let more = random.below(60);
                text.extend(tokens(&mut random, more + usize::from(text.is_empty())));
                let (id, cached) = warm.cache.resume(&text, &None);
                assert!(cached < text.len());
                reused += cached;
                let chunk = 1 + random.below(40);
                // Kept in the middle as a server would at a prompt's end, and at the end.
                let middle = cached + random.below(text.len() - cached);
                warm.feed(id, &text[cached..middle], chunk).unwrap();
                warm.cache.remember(id, &text[..middle], &None);
                let found = warm.feed(id, &text[middle..], chunk).unwrap();
                warm.cache.remember(id, &text, &None);
                warm.cache.release(id);
                assert!(
                    found == cold.cold(&text),
                    "{family:?} {pair:?}, round {round}: {cached} of {} cached",
                    text.len()
                );
                texts.push(text);
            }
            assert!(reused > 0, "nothing was reused");
            warm.cache.forget();
            assert_eq!(warm.cache.bytes_in_use(), 0, "blocks leak");
        }
    }
}

#[test]
fn prompts_restored_from_disk_give_the_bits_of_cold_ones() {
    let mut random = Random::new(12);
    for family in FAMILIES {
        let model = load(family);
        for pair in PAIRS {
            let dir = tempfile::tempdir().unwrap();
            let mut cold = Run::new(&model, config(pair, None));
            let mut text = tokens(&mut random, 70);
            let mut restored_all = 0;
            for round in 0..8 {
                // Each round is a process of its own.
                let store = open(dir.path());
                let mut run = Run::new(&model, config(pair, None));
                let (id, cached) = match run.cache.restore(&text, &None, &store, 0).unwrap() {
                    Some(restored) => restored,
                    None => (run.cache.create(), 0),
                };
                restored_all += cached;
                let found = run.feed(id, &text[cached..], 16).unwrap();
                assert!(
                    found == cold.cold(&text),
                    "{family:?} {pair:?}, round {round}: {cached} of {}",
                    text.len()
                );
                run.cache.persist(id, &text, &None, &store).unwrap();
                drop(store);
                let keep = 1 + random.below(text.len());
                if round % 3 == 2 {
                    text.truncate(keep);
                }
                let more = random.below(50);
                text.extend(tokens(&mut random, more));
            }
            assert!(restored_all > 100, "{family:?} {pair:?}: only {restored_all} positions came from disk");
        }
    }
}

#[test]
fn the_same_prompt_four_times_gives_the_same_answer() {
    let mut random = Random::new(13);
    let prompt = tokens(&mut random, 1464);
    for family in [Family::Gemma3, Family::Experts { merged: true }] {
        let model = load(family);
        let pair = (KvFormat::Tq8, KvFormat::Tq8);
        let dir = tempfile::tempdir().unwrap();
        let answer = |session: &mut Session<CpuBackend>, store: Option<&KvStore>| {
            let cached = session.start(&prompt, store).unwrap();
            let mut logits = session.feed(&prompt[cached..], &AtomicBool::new(false)).unwrap().unwrap();
            session.keep();
            let mut answer = Vec::new();
            for _ in 0..20 {
                let logits_now = logits.logits(0);
                let best =
                    (0..VOCAB).max_by(|&a, &b| logits_now[a].total_cmp(&logits_now[b])).unwrap() as u32;
                answer.push(best);
                logits = session.feed(&[best], &AtomicBool::new(false)).unwrap().unwrap();
            }
            session.keep();
            (cached, answer)
        };
        let mut session = Session::new(Arc::clone(&model), config(pair, None), 512).unwrap();
        let store = open(dir.path());
        let first = answer(&mut session, Some(&store));
        assert_eq!(first.0, 0);
        for _ in 1..4 {
            assert_eq!(answer(&mut session, Some(&store)), (1463, first.1.clone()));
        }
        session.persist(&store).unwrap();
        drop(store);
        for _ in 0..4 {
            let mut session = Session::new(Arc::clone(&model), config(pair, None), 512).unwrap();
            assert_eq!(answer(&mut session, Some(&open(dir.path()))), (1463, first.1.clone()));
        }
    }
}

#[test]
fn salts_keep_users_apart() {
    let model = load(Family::Gemma3);
    let mut run = Run::new(&model, config(PAIRS[0], None));
    let text = tokens(&mut Random::new(14), 50);
    let id = run.cache.create();
    run.feed(id, &text, 50).unwrap();
    run.cache.remember(id, &text, &Some("one".into()));
    for other in [None, Some("".into()), Some("two".into())] {
        assert_eq!(run.cache.resume(&text, &other).1, 0);
    }
    assert_eq!(run.cache.resume(&text, &Some("one".into())).1, 49);
}

#[test]
fn a_budget_is_kept_by_forgetting_and_then_by_refusing() {
    let model = load(Family::DenseFused);
    let pair = (KvFormat::F16, KvFormat::F16);
    let size = KvSize::new(model.config(), pair.0, pair.1);
    let budget = size.of_sequence(300, 64);
    let mut run = Run::new(&model, config(pair, Some(budget)));
    let mut random = Random::new(15);
    for _ in 0..12 {
        let text = tokens(&mut random, 100);
        let (id, _) = run.cache.resume(&text, &None);
        run.feed(id, &text, 64).unwrap();
        run.cache.remember(id, &text, &None);
        run.cache.release(id);
        assert!(run.cache.bytes_held() <= budget);
    }
    assert!(run.cache.remembered() > 0, "nothing is kept though there is room");
    let long = tokens(&mut random, 300);
    let id = run.cache.create();
    run.feed(id, &long, 64).unwrap();
    assert!(run.cache.bytes_held() <= budget);
    // Beyond: a typed error, and the sequence as it was.
    let length = run.cache.length(id);
    let error = run.feed(id, &tokens(&mut random, 2000), 64).unwrap_err();
    assert!(
        matches!(error, EngineError::KvBudget { needed, budget: b } if needed > b && b == budget),
        "{error}"
    );
    assert!(run.cache.length(id) >= length && run.cache.bytes_held() <= budget);
    run.cache.release(id);
    let id = run.cache.create();
    run.feed(id, &long, 64).unwrap();
}

#[test]
fn sizes_are_bounds() {
    for family in FAMILIES {
        let model = load(family);
        for pair in PAIRS {
            let size = KvSize::new(model.config(), pair.0, pair.1);
            let mut run = Run::new(&model, config(pair, None));
            let id = run.cache.create();
            let mut random = Random::new(16);
            for _ in 0..9 {
                let more = 1 + random.below(64);
                run.feed(id, &tokens(&mut random, more), 64).unwrap();
                let bound = size.of_sequence(run.cache.length(id), 64);
                assert!(run.cache.bytes_held() <= bound, "{family:?}: {} of {bound}", run.cache.bytes_held());
            }
            assert_eq!(size.longest(size.of_sequence(500, 64), 4096, 64), 512, "whole blocks");
        }
    }
}
