//! `lapidary generate`.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use lapidary_engine::kv::KvStore;
use lapidary_engine::sample::top_logprobs;
use lapidary_engine::speculate::{Choice, Speculator};
use lapidary_engine::tokenizer::{DecodeOptions, EncodeOptions, StopMatcher, StreamDecoder, Tokenizer};
use lapidary_engine::{DEFAULT_BATCH, Logits, Sampler, Session, Step, Want};
use serde::Serialize;

use crate::args::GenerateArgs;
use crate::device::{Device, on_device};
use crate::draft::{self, SpeculationReport};
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
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<SpeculationReport>,
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
    let speculator = draft::speculator(&args.draft, &args.run, &loaded, context)?;
    let writer = Writer::new(args, tokenizer);
    let mut generation = Generation::new(writer, session, speculator, store, cancel);
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

/// A text being generated.
struct Generation<'a, B: Device> {
    writer: Writer<'a>,
    session: Session<B>,
    speculator: Option<Speculator<B>>,
    store: Option<KvStore>,
    /// Tokens of the prompt whose keys and values were there already.
    cached: usize,
    cancel: &'a AtomicBool,
    prompt_time: Duration,
    decode_time: Duration,
}

impl<'a, B: Device> Generation<'a, B> {
    fn new(
        writer: Writer<'a>,
        session: Session<B>,
        speculator: Option<Speculator<B>>,
        store: Option<KvStore>,
        cancel: &'a AtomicBool,
    ) -> Self {
        let (cached, prompt_time, decode_time) = (0, Duration::ZERO, Duration::ZERO);
        Self { writer, session, speculator, store, cached, cancel, prompt_time, decode_time }
    }

    fn run(&mut self, prompt: &[u32], context: usize) -> Result<()> {
        self.writer.begin(prompt)?;
        let begin = Instant::now();
        self.cached = self.session.start(prompt, self.store.as_ref())?;
        let output = self.session.feed_wanting(&prompt[self.cached..], self.writer.need(), self.cancel)?;
        self.prompt_time = begin.elapsed();
        if self.store.is_some() {
            self.session.keep();
        }
        let begin = Instant::now();
        let room = (context - prompt.len()).saturating_add(1).min(self.writer.args.n_predict as usize);
        match output {
            Some(output) if room > 0 => self.decode(output.scores(0), room)?,
            Some(_) => {}
            None => self.writer.finish_reason = FinishReason::Interrupted,
        }
        self.decode_time = begin.elapsed();
        self.writer.flush()?;
        if let Some(store) = &self.store {
            self.session.keep();
            self.session.persist(store)?;
        }
        Ok(())
    }

    /// Writes up to `room` tokens, the first one out of the prompt's `scores`.
    fn decode(&mut self, scores: Logits, room: usize) -> Result<()> {
        let mut choice = self.writer.choose(scores, room)?;
        while choice.more {
            if self.cancel.load(Ordering::Relaxed) {
                self.writer.finish_reason = FinishReason::Interrupted;
                break;
            }
            let writer = &mut self.writer;
            let step = Step { last: choice.token, need: writer.need(), room: room - writer.ids.len() };
            self.session.step(step, self.speculator.as_mut(), |scores| {
                choice = writer.choose(scores, room)?;
                anyhow::Ok(choice)
            })?;
        }
        Ok(())
    }
}

/// Chooses the tokens and shows their text.
struct Writer<'a> {
    args: &'a GenerateArgs,
    tokenizer: &'a Tokenizer,
    sampler: Sampler,
    seed: u64,
    decoder: StreamDecoder<&'a Tokenizer>,
    stops: StopMatcher,
    ids: Vec<u32>,
    text: String,
    logprobs: Vec<Vec<Logprob>>,
    finish_reason: FinishReason,
}

impl<'a> Writer<'a> {
    fn new(args: &'a GenerateArgs, tokenizer: &'a Tokenizer) -> Self {
        let mut config = args.sampling.config();
        config.logit_bias.extend(tokenizer.suppressed().iter().map(|&id| (id, f32::NEG_INFINITY)));
        Self {
            args,
            tokenizer,
            seed: config.seed,
            sampler: Sampler::new(config),
            decoder: StreamDecoder::new(tokenizer, DecodeOptions::default()),
            stops: StopMatcher::new(&args.stop),
            ids: Vec::new(),
            text: String::new(),
            logprobs: Vec::new(),
            finish_reason: FinishReason::Length,
        }
    }

    /// Takes note of the prompt and shows it.
    fn begin(&mut self, prompt: &[u32]) -> Result<()> {
        prompt.iter().for_each(|&token| self.sampler.accept(token));
        if self.args.json {
            return Ok(());
        }
        self.print(&self.tokenizer.decode(prompt, DecodeOptions::default())?)
    }

    /// Chooses a token and shows it. The text goes on behind it until it ends or has `room` tokens.
    fn choose(&mut self, scores: Logits, room: usize) -> Result<Choice> {
        let token = self.sampler.sample_from(scores)?;
        if self.args.logprobs > 0
            && let Logits::All(logits) = scores
        {
            let top = top_logprobs(logits, self.args.logprobs as usize);
            self.logprobs.push(top.into_iter().map(|(id, logprob)| Logprob { id, logprob }).collect());
        }
        self.sampler.accept(token);
        self.ids.push(token);
        let ends = self.tokenizer.is_end_of_generation(token) && !self.args.ignore_eos;
        if ends || self.emit(token)? {
            self.finish_reason = FinishReason::Stop;
            return Ok(Choice { token, more: false });
        }
        Ok(Choice { token, more: self.ids.len() < room })
    }

    /// What is to come back of the next token.
    fn need(&self) -> Want {
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
    let writer = generation.writer;
    let decoded = writer.ids.len().saturating_sub(1);
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
    let speculation = generation.speculator.as_ref().map(SpeculationReport::of);
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
            writer.ids.len(),
            timings.decode_per_s,
            crate::output::bytes(generation.session.cache_bytes() as u64),
            writer.seed,
        );
        if let Some(screened) = screened_head {
            eprintln!("{screened}");
        }
        if let Some(speculation) = speculation {
            eprintln!("{speculation}");
        }
        return Ok(());
    }
    let report = Report {
        prompt_ids,
        ids: writer.ids,
        text: writer.text,
        finish_reason: writer.finish_reason,
        seed: writer.seed,
        timings,
        logprobs: (args.logprobs > 0).then_some(writer.logprobs),
        screened_head,
        speculation,
    };
    serde_json::to_writer(&mut stdout, &report)?;
    Ok(writeln!(stdout)?)
}
