//! Drafts never change a token, nor a bit of the logits: random trees, whatever part of them holds, sliding windows that
//! wrap, every cache format, against decoding one token after the other.

// Not every helper of the shared module is used here.
#[allow(dead_code)]
mod common;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, Mutex};

use common::{FAMILIES, Random, VOCAB, model_bytes_with};
use lapidary_backend::KvFormat;
use lapidary_cpu::{CpuBackend, CpuConfig};
use lapidary_engine::speculate::{
    Choice, DraftRequest, DraftTree, Drafter, LookupDrafter, Speculator, SpeculatorConfig,
};
use lapidary_engine::{EngineError, KvCacheConfig, Model, Sampler, SamplerConfig, Session, Step, Want};
use lapidary_gguf::{Gguf, SharedBytes};
use proptest::prelude::*;

type Models = Mutex<HashMap<(usize, u32), Arc<Model<CpuBackend>>>>;

/// The model of a family with a window, loaded once.
fn model(family: usize, window: u32) -> Arc<Model<CpuBackend>> {
    static MODELS: LazyLock<Models> = LazyLock::new(Models::default);
    static BACKEND: LazyLock<Arc<CpuBackend>> =
        LazyLock::new(|| Arc::new(CpuBackend::new(CpuConfig { threads: 1, ..CpuConfig::default() })));
    let mut models = MODELS.lock().unwrap();
    let load = || {
        let bytes = SharedBytes::from(model_bytes_with(FAMILIES[family], 7, window));
        let gguf = Gguf::from_bytes(bytes, "a test model").unwrap();
        Arc::new(Model::load(&gguf, Arc::clone(&BACKEND), &mut |_, _| ()).unwrap())
    };
    Arc::clone(models.entry((family, window)).or_insert_with(load))
}

fn session(model: &Arc<Model<CpuBackend>>, format: KvFormat, context: usize) -> Session<CpuBackend> {
    let config = KvCacheConfig { k_format: format, v_format: format, context, budget: None };
    Session::new(Arc::clone(model), config, 32).unwrap()
}

/// The emitted tokens, each with a digest of the logits that it was chosen by.
type Text = Vec<(u32, u64)>;

fn digest(logits: &[f32]) -> u64 {
    logits
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, x| (h ^ u64::from(x.to_bits())).wrapping_mul(0x100_0000_01b3))
}

/// Writes `n` tokens behind `prompt`, with drafts if there is a speculator.
fn write(
    session: &mut Session<CpuBackend>,
    prompt: &[u32],
    n: usize,
    config: &SamplerConfig,
    mut speculator: Option<&mut Speculator<CpuBackend>>,
) -> Text {
    let mut sampler = Sampler::new(config.clone());
    prompt.iter().for_each(|&token| sampler.accept(token));
    let mut text = Text::new();
    let mut choose = |text: &mut Text, logits: &[f32]| {
        let token = sampler.sample(logits).unwrap();
        sampler.accept(token);
        text.push((token, digest(logits)));
        token
    };
    session.reset();
    let output = session.feed(prompt, &AtomicBool::new(false)).unwrap().unwrap();
    let mut last = choose(&mut text, output.logits(0));
    while text.len() < n {
        let step = Step { last, need: Want::Logits, room: n - text.len() };
        session
            .step::<EngineError>(step, speculator.as_deref_mut(), |logits| {
                let lapidary_engine::Logits::All(values) = logits else {
                    panic!("all logits were asked for")
                };
                last = choose(&mut text, values);
                Ok(Choice { token: last, more: text.len() < n })
            })
            .unwrap();
    }
    text
}

/// Drafts random trees through which the true continuation runs for a random length.
struct Oracle {
    random: Random,
    truth: Vec<u32>,
    nodes: usize,
}

impl<B: lapidary_backend::Backend> Drafter<B> for Oracle {
    fn name(&self) -> &str {
        "oracle"
    }

    fn draft(&mut self, request: &mut DraftRequest<'_, B>) -> lapidary_engine::Result<DraftTree> {
        let mut tree = DraftTree::new();
        let mut true_path: Option<usize> = None;
        let mut true_length = 0;
        let nodes = self.random.below(self.nodes + 1);
        while tree.len() < nodes {
            let before = tree.len();
            let next = self.truth.get(request.text.len() + true_length);
            match (self.random.below(3), next) {
                (0, _) | (_, None) => {
                    let parent = self.random.below(before + 1).checked_sub(1);
                    tree.push(parent, self.random.below(VOCAB) as u32, 0.5);
                }
                (_, Some(&token)) => {
                    true_path = Some(tree.push(true_path, token, 0.5));
                    true_length += 1;
                }
            }
            if tree.len() == before && self.random.below(8) == 0 {
                break;
            }
        }
        Ok(tree)
    }
}

fn formats() -> impl Strategy<Value = KvFormat> {
    prop::sample::select(vec![KvFormat::F32, KvFormat::F16, KvFormat::Tq8, KvFormat::Tq4])
}

fn samplers() -> impl Strategy<Value = SamplerConfig> {
    let greedy = SamplerConfig { temperature: 0.0, ..SamplerConfig::default() };
    let hot =
        SamplerConfig { temperature: 1.5, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplerConfig::default() };
    let penalised =
        SamplerConfig { repeat_penalty: 1.3, frequency_penalty: 0.2, penalty_window: 9, ..hot.clone() };
    (prop::sample::select(vec![greedy, hot, penalised]), any::<u64>())
        .prop_map(|(config, seed)| SamplerConfig { seed, ..config })
}

proptest! {
    // The environment variable PROPTEST_CASES asks for more.
    #[test]
    fn random_trees_change_nothing(
        family in 0..FAMILIES.len(),
        window in 8..=32u32,
        format in formats(),
        config in samplers(),
        prompt in prop::collection::vec(0..VOCAB as u32, 1..70),
        (n, nodes) in (2..60usize, 1..24usize),
        seed in any::<u64>(),
    ) {
        let model = model(family, window);
        let context = prompt.len() + n;
        let plain = write(&mut session(&model, format, context), &prompt, n, &config, None);
        let truth = prompt.iter().copied().chain(plain.iter().map(|t| t.0)).collect();
        let oracle = Oracle { random: Random::new(seed), truth, nodes };
        let limits = SpeculatorConfig { max_nodes: 24, max_depth: 24, adapt: false };
        let mut speculator = Speculator::new(Box::new(oracle), limits);
        let mut session = session(&model, format, context);
        let drafted = write(&mut session, &prompt, n, &config, Some(&mut speculator));
        prop_assert_eq!(&drafted, &plain);
        // What is left in the cache is the text but for its last token.
        prop_assert_eq!(session.length(), prompt.len() + n - 1);
        let stats = speculator.stats();
        prop_assert_eq!(stats.tokens, n - 1);
        prop_assert_eq!(stats.passes + stats.accepted, n - 1);
    }
}

/// A text that repeats itself is decoded in far fewer passes than tokens.
#[test]
fn lookup_saves_passes_where_the_text_repeats() {
    let greedy = SamplerConfig { temperature: 0.0, ..SamplerConfig::default() };
    let mut saved = 0;
    for family in 0..FAMILIES.len() {
        let model = model(family, 12);
        let prompt: Vec<u32> = (0..48).map(|i| 40 + i % 6).collect();
        let plain = write(&mut session(&model, KvFormat::F16, 400), &prompt, 200, &greedy, None);
        for adapt in [false, true] {
            let config = SpeculatorConfig { adapt, ..SpeculatorConfig::default() };
            let mut speculator = Speculator::new(Box::new(LookupDrafter::new()), config);
            let mut session = session(&model, KvFormat::F16, 400);
            assert_eq!(write(&mut session, &prompt, 200, &greedy, Some(&mut speculator)), plain);
            let stats = speculator.stats();
            assert_eq!(stats.tokens, 199);
            saved += if adapt { 0 } else { stats.accepted };
        }
    }
    // Greedy texts of random models soon go in circles.
    assert!(saved > FAMILIES.len() * 50, "{saved} tokens were accepted");
}

/// Draft rows take room in the cache that the text alone does not; without it the draft is dropped, not the text.
#[test]
fn a_full_cache_drops_the_draft() {
    let model = model(0, 12);
    let greedy = SamplerConfig { temperature: 0.0, ..SamplerConfig::default() };
    let prompt = [5, 6, 7];
    let plain = write(&mut session(&model, KvFormat::F32, 64), &prompt, 28, &greedy, None);
    let truth: Vec<u32> = prompt.iter().copied().chain(plain.iter().map(|t| t.0)).collect();
    let mut tight = session(&model, KvFormat::F32, 64);
    tight.feed(&prompt, &AtomicBool::new(false)).unwrap();
    // One block of each layer group is all that the text needs.
    let budget = Some(tight.cache_bytes());
    let config = KvCacheConfig { k_format: KvFormat::F32, v_format: KvFormat::F32, context: 64, budget };
    let mut session = Session::new(model, config, 32).unwrap();
    let oracle = Oracle { random: Random::new(3), truth, nodes: 60 };
    let limits = SpeculatorConfig { max_nodes: 60, max_depth: 60, adapt: false };
    let mut speculator = Speculator::new(Box::new(oracle), limits);
    assert_eq!(write(&mut session, &prompt, 28, &greedy, Some(&mut speculator)), plain);
}
