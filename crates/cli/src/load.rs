//! Opening model files, with progress and errors that say what to do.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use lapidary_engine::kv::KvStore;
use lapidary_engine::kv::store::Warn;
use lapidary_engine::model::{HeadFormat, HeadOptions, Screen, fingerprint};
use lapidary_engine::tokenizer::Tokenizer;
use lapidary_engine::{KvCacheConfig, Model, Session};
use lapidary_gguf::Gguf;

use crate::args::{HeadArg, KvStoreArgs, ModelArgs, RunArgs, Switch, TextArgs};
use crate::device::Device;
use crate::memory::KvMemory;
use crate::{demo, memory};

/// An opened model.
pub struct Loaded<B: Device> {
    pub gguf: Gguf,
    pub model: Arc<Model<B>>,
    pub tokenizer: Option<Tokenizer>,
    pub load_time: Duration,
}

impl<B: Device> Loaded<B> {
    /// The tokenizer.
    ///
    /// # Errors
    /// When the file has none.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer
            .as_ref()
            .context("the model file has no tokenizer; give token ids where the command takes them")
    }
}

/// Opens a GGUF file.
pub fn open(path: &Path) -> Result<Gguf> {
    Ok(Gguf::open(path)?)
}

/// Opens the model that the flags name, or the demo model.
pub fn open_model(args: &ModelArgs) -> Result<Gguf> {
    match &args.model {
        Some(path) => open(path),
        None => demo::model(),
    }
}

/// Loads the model that the flags name onto a device. The tokenizer is read beside the weights.
pub fn load<B: Device>(run: &RunArgs, backend: Arc<B>) -> Result<Loaded<B>> {
    load_from(run, backend, || open_model(&run.model))
}

/// Loads what `open` opens onto a device.
pub fn load_from<B: Device>(
    run: &RunArgs,
    backend: Arc<B>,
    open: impl FnOnce() -> Result<Gguf>,
) -> Result<Loaded<B>> {
    let begin = Instant::now();
    let gguf = open()?;
    let head = head_options(run, &gguf)?;
    let bar = progress_bar("loading layers");
    let (model, tokenizer) = std::thread::scope(|scope| {
        let tokenizer = scope.spawn(|| tokenizer(&gguf));
        let model = Model::load_with(&gguf, backend, &head, &mut |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        });
        (model, tokenizer.join().expect("the tokenizer's thread does not panic"))
    });
    bar.finish_and_clear();
    let file = || match &run.model.model {
        Some(path) => format!("cannot load {}", path.display()),
        None => "cannot load the demo model".to_owned(),
    };
    let (model, tokenizer) = (Arc::new(model.with_context(file)?), tokenizer.with_context(file)?);
    let (vocab, tokens) = (model.config().vocab, tokenizer.as_ref().map_or(0, Tokenizer::n_tokens));
    if tokens > vocab {
        bail!("{}: its tokenizer has {tokens} tokens, its embedding table only {vocab} rows", file());
    }
    Ok(Loaded { gguf, model, tokenizer, load_time: begin.elapsed() })
}

/// How the output matrix is used. The second look always includes the tokens that end or structure a text.
fn head_options(run: &RunArgs, gguf: &Gguf) -> Result<HeadOptions> {
    let format = match run.head {
        HeadArg::Native => return Ok(HeadOptions::default()),
        HeadArg::Auto => return Ok(HeadOptions { screen: Screen::Auto, ..HeadOptions::default() }),
        HeadArg::Screened => return Ok(HeadOptions { screen: Screen::Always, ..HeadOptions::default() }),
        HeadArg::F16 => HeadFormat::F16,
        HeadArg::Q8_0 => HeadFormat::Q8_0,
    };
    let mut always = Vec::new();
    if let Some(tokenizer) = tokenizer(gguf)? {
        let special = tokenizer.special_ids();
        always.extend([special.bos, special.eos, special.padding].into_iter().flatten());
        let turns = ["<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>"];
        always.extend(turns.iter().filter_map(|text| tokenizer.token_id(text)));
    }
    Ok(HeadOptions { format, rerank: (run.rerank == Switch::On).then_some(always), screen: Screen::Off })
}

/// The file's tokenizer, `None` when it has none.
pub fn tokenizer(gguf: &Gguf) -> Result<Option<Tokenizer>> {
    match gguf.metadata().opt_str("tokenizer.ggml.model")? {
        None | Some("none" | "no_vocab") => Ok(None),
        Some(_) => Ok(Some(Tokenizer::from_gguf(gguf)?)),
    }
}

/// A session over `context` positions.
pub fn session<B: Device>(
    loaded: &Loaded<B>,
    run: &RunArgs,
    context: usize,
    batch_rows: usize,
) -> Result<Session<B>> {
    let (k_format, v_format) = run.kv.formats(loaded.model.config(), B::PREFERRED_KV);
    let budget = kv_budget(loaded, run.kv.kv_memory);
    if let Some(budget) = budget {
        memory::check(loaded.model.config(), (k_format, v_format), context, batch_rows, budget)?;
    }
    let config = KvCacheConfig { k_format, v_format, context, budget };
    Ok(Session::new(Arc::clone(&loaded.model), config, batch_rows)?)
}

/// Bytes that a cache may take on the device of a loaded model; `None` where the system does not tell.
pub fn kv_budget<B: Device>(loaded: &Loaded<B>, memory: KvMemory) -> Option<usize> {
    match loaded.model.backend().free_memory() {
        // The weights are there already.
        Some(free) => Some(memory.budget_of(free)),
        None => memory.budget(loaded.gguf.file_bytes() + loaded.model.screen_bytes() as u64),
    }
}

/// Opens the store of keys and values that the flags name. Where it cannot be used, a warning says why and the run goes
/// on without.
pub fn store<B: Device>(loaded: &Loaded<B>, run: &RunArgs, args: &KvStoreArgs) -> Result<Option<KvStore>> {
    let Some(dir) = &args.kv_store else { return Ok(None) };
    let backend = loaded.model.backend();
    let mut root = blake3::Hasher::new();
    root.update(&fingerprint(&loaded.gguf)?);
    root.update(backend.kv_layout().as_bytes());
    let (k_format, v_format) = run.kv.formats(loaded.model.config(), B::PREFERRED_KV);
    root.update(format!("{} {k_format} {v_format}", env!("CARGO_PKG_VERSION")).as_bytes());
    let warn: Warn = Arc::new(|warning| eprintln!("warning: {}", crate::output::printable(&warning)));
    match KvStore::open(dir, args.kv_store_size, *root.finalize().as_bytes(), warn) {
        Ok(store) => Ok(Some(store)),
        Err(error) => {
            eprintln!("warning: keys and values are not kept in {}: {error}", dir.display());
            Ok(None)
        }
    }
}

/// Rows for which logits may be computed together: as many as fit 32 MiB.
pub fn rows_with_logits(vocab: usize) -> usize {
    ((32 << 20) / (4 * vocab)).clamp(8, 512)
}

/// The text that the flags give, as bytes.
pub fn text(args: &TextArgs) -> Result<Vec<u8>> {
    match (&args.prompt, &args.file) {
        (Some(prompt), _) => Ok(prompt.clone().into_bytes()),
        (None, Some(file)) => read(file),
        (None, None) => bail!("give a text with -p or a file with -f"),
    }
}

/// Reads a file, or standard input when it is called `-`.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
        return Ok(bytes);
    }
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// A progress bar on stderr; it shows only on a terminal, and only when the work takes a while.
pub fn progress_bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {eta}").expect("a valid template");
    ProgressBar::new(0).with_style(style.progress_chars("=> ")).with_message(what)
}
