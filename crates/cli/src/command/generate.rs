//! `lapidary generate`.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use lapidary_engine::kv::KvStore;
use lapidary_engine::sample::top_logprobs;
use lapidary_engine::tokenizer::{DecodeOptions, EncodeOptions, StopMatcher, StreamDecoder, Tokenizer};
use lapidary_engine::{DEFAULT_BATCH, Sampler, Session, Want};
use serde::Serialize;

use crate::args::GenerateArgs;
use crate::device::{Device, on_device};
use crate::interrupt;
use crate::load::{self, Loaded};
use crate::screened::ScreenReport;

#[derive(Serialize)]
struct Report {
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    text: String,
    finish_reason: FinishReason,
    seed: u64,
    timings: Timings,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Vec<Logprob>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    screened_head: Option<ScreenReport>,
}

#[derive(Serialize)]
struct Logprob {
    id: u32,
    logprob: f32,
}

/// Why generation ended.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum FinishReason {
    /// The model ended its text, or a stop string appeared.
    Stop,
    /// As many tokens as asked for, or the context is full.
    Length,
    /// Ctrl-C.
    Interrupted,
}

#[derive(Serialize)]
struct Timings {
    load_ms: f64,
    prompt_ms: f64,
    prompt_tokens: usize,
    cached_tokens: usize,
    decode_ms: f64,
    decode_tokens: usize,
    prompt_per_s: f64,
    decode_per_s: f64,
}

/// Continues a text.
pub fn run(args: GenerateArgs) -> Result<()> {
    let cancel = interrupt::install()?;
    let text = load::text(&args.text)?;
    on_device!(&args.run, backend => generate(&args, &text, backend, cancel))
}

fn generate<B: Device>(args: &GenerateArgs, text: &[u8], backend: Arc<B>, cancel: &AtomicBool) -> Result<()> {
    let loaded = load::load(&args.run, backend)?;
    let tokenizer = loaded.tokenizer()?;
    let options = EncodeOptions { add_bos: !args.no_bos, parse_special: !args.no_special };
    let prompt = tokenizer.encode(text, options);
    let context = context(args, &loaded, prompt.len())?;
    let session = load::session(&loaded, &args.run, context, DEFAULT_BATCH)?;
    let store = load::store(&loaded, &args.run, &args.store)?;
    let mut generation = Generation::new(args, tokenizer, session, store, cancel);
    generation.run(&prompt, context)?;
    finish(args, &loaded, prompt, generation)
}

/// Positions to provide for.
fn context<B: Device>(args: &GenerateArgs, loaded: &Loaded<B>, prompt: usize) -> Result<usize> {
    let trained = loaded.model.config().context_length;
    if prompt == 0 {
        bail!("the prompt has no tokens; give some text, or leave out --no-bos");
    }
    let context = args.ctx_size.map_or_else(|| trained.min(prompt + args.n_predict as usize), |c| c as usize);
    if context > trained {
        eprintln!("warning: the model was trained on {trained} positions; {context} may give poor text");
    }
    if prompt > context {
        bail!("the prompt has {prompt} tokens, the context holds {context}; raise -c or shorten the prompt");
    }
    Ok(context)
}

/// A text being written.
struct Generation<'a, B: Device> {
    args: &'a GenerateArgs,
    tokenizer: &'a Tokenizer,
    session: Session<B>,
    store: Option<KvStore>,
    /// Tokens of the prompt whose keys and values were there already.
    cached: usize,
    sampler: Sampler,
    seed: u64,
    cancel: &'a AtomicBool,
    decoder: StreamDecoder<&'a Tokenizer>,
    stops: StopMatcher,
    ids: Vec<u32>,
    text: String,
    logprobs: Vec<Vec<Logprob>>,
    finish_reason: FinishReason,
    prompt_time: Duration,
    decode_time: Duration,
}

impl<'a, B: Device> Generation<'a, B> {
    fn new(
        args: &'a GenerateArgs,
        tokenizer: &'a Tokenizer,
        session: Session<B>,
        store: Option<KvStore>,
        cancel: &'a AtomicBool,
    ) -> Self {
        let mut config = args.sampling.config();
        config.logit_bias.extend(tokenizer.suppressed().iter().map(|&id| (id, f32::NEG_INFINITY)));
        Self {
            args,
            tokenizer,
            session,
            store,
            cached: 0,
            seed: config.seed,
            sampler: Sampler::new(config),
            cancel,
            decoder: StreamDecoder::new(tokenizer, DecodeOptions::default()),
            stops: StopMatcher::new(&args.stop),
            ids: Vec::new(),
            text: String::new(),
            logprobs: Vec::new(),
            finish_reason: FinishReason::Length,
            prompt_time: Duration::ZERO,
            decode_time: Duration::ZERO,
        }
    }

    fn run(&mut self, prompt: &[u32], context: usize) -> Result<()> {
        prompt.iter().for_each(|&token| self.sampler.accept(token));
        if !self.args.json {
            self.print(&self.tokenizer.decode(prompt, DecodeOptions::default())?)?;
        }
        let begin = Instant::now();
        self.cached = self.session.start(prompt, self.store.as_ref())?;
        let mut output = self.session.feed_wanting(&prompt[self.cached..], self.want(), self.cancel)?;
        self.prompt_time = begin.elapsed();
        if self.store.is_some() {
            self.session.keep();
        }
        let begin = Instant::now();
        let room = (context - prompt.len()).saturating_add(1).min(self.args.n_predict as usize);
        while self.ids.len() < room {
            let Some(logits) = output.as_ref().filter(|_| !self.cancel.load(Ordering::Relaxed)) else {
                self.finish_reason = FinishReason::Interrupted;
                break;
            };
            let token = self.sampler.sample_from(logits.scores(0))?;
            if self.args.logprobs > 0 {
                let top = top_logprobs(logits.logits(0), self.args.logprobs as usize);
                self.logprobs.push(top.into_iter().map(|(id, logprob)| Logprob { id, logprob }).collect());
            }
            self.sampler.accept(token);
            self.ids.push(token);
            if self.tokenizer.is_end_of_generation(token) && !self.args.ignore_eos {
                self.finish_reason = FinishReason::Stop;
                break;
            }
            if self.emit(token)? {
                self.finish_reason = FinishReason::Stop;
                break;
            }
            if self.ids.len() < room {
                output = self.session.feed_wanting(&[token], self.want(), self.cancel)?;
            }
        }
        self.decode_time = begin.elapsed();
        self.flush()?;
        if let Some(store) = &self.store {
            self.session.keep();
            self.session.persist(store)?;
        }
        Ok(())
    }

    /// What is to come back of the next token.
    fn want(&self) -> Want {
        if self.args.logprobs > 0 { Want::Logits } else { self.sampler.need() }
    }

    /// Shows a token's text; true when a stop string appeared.
    fn emit(&mut self, token: u32) -> Result<bool> {
        let piece = self.decoder.push(token)?;
        let found = self.stops.push(&piece);
        self.show(&found.text)?;
        Ok(found.stop.is_some())
    }

    /// Shows what was held back.
    fn flush(&mut self) -> Result<()> {
        let tail = self.decoder.finish();
        let mut text = self.stops.push(&tail).text;
        text += &self.stops.finish();
        self.show(&text)
    }

    fn show(&mut self, text: &str) -> Result<()> {
        self.text += text;
        if self.args.json { Ok(()) } else { self.print(text) }
    }

    fn print(&self, text: &str) -> Result<()> {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        Ok(stdout.flush()?)
    }
}

fn finish<B: Device>(
    args: &GenerateArgs,
    loaded: &Loaded<B>,
    prompt_ids: Vec<u32>,
    generation: Generation<B>,
) -> Result<()> {
    let per_second = |n: usize, time: Duration| if n == 0 { 0.0 } else { n as f64 / time.as_secs_f64() };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    // The first token comes out of the prompt's own pass.
    let decoded = generation.ids.len().saturating_sub(1);
    let timings = Timings {
        load_ms: ms(loaded.load_time),
        prompt_ms: ms(generation.prompt_time),
        prompt_tokens: prompt_ids.len(),
        cached_tokens: generation.cached,
        decode_ms: ms(generation.decode_time),
        decode_tokens: decoded,
        prompt_per_s: per_second(prompt_ids.len() - generation.cached, generation.prompt_time),
        decode_per_s: per_second(decoded, generation.decode_time),
    };
    let screened_head = ScreenReport::of(loaded.model.screen_stats());
    let mut stdout = std::io::stdout().lock();
    if !args.json {
        writeln!(stdout)?;
        eprintln!(
            "\nload {:.0} ms, prompt {} tokens{} {:.1}/s, generated {} tokens {:.1}/s, cache {}, seed {}",
            timings.load_ms,
            timings.prompt_tokens,
            if timings.cached_tokens > 0 {
                format!(" ({} cached)", timings.cached_tokens)
            } else {
                String::new()
            },
            timings.prompt_per_s,
            generation.ids.len(),
            timings.decode_per_s,
            crate::output::bytes(generation.session.cache_bytes() as u64),
            generation.seed,
        );
        if let Some(screened) = screened_head {
            eprintln!("{screened}");
        }
        return Ok(());
    }
    let report = Report {
        prompt_ids,
        ids: generation.ids,
        text: generation.text,
        finish_reason: generation.finish_reason,
        seed: generation.seed,
        timings,
        logprobs: (args.logprobs > 0).then_some(generation.logprobs),
        screened_head,
    };
    serde_json::to_writer(&mut stdout, &report)?;
    Ok(writeln!(stdout)?)
}
