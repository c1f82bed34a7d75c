//! Times loading a tokenizer and encoding text: `cargo run --release --example tokenizer_speed -- MODEL.gguf [TEXT]`.
//!
//! Each figure is the median and the best of several runs; the first load, with cold memory, is shown apart.

use std::hint::black_box;
use std::time::{Duration, Instant};

use lapidary_engine::tokenizer::{EncodeOptions, Tokenizer};
use lapidary_gguf::Gguf;

const RUNS: usize = 9;
const OPTIONS: EncodeOptions = EncodeOptions { add_bos: true, parse_special: false };

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().ok_or("usage: tokenizer_speed MODEL.gguf [TEXT]")?;
    let start = Instant::now();
    let tokenizer = load(&model)?;
    println!("{} tokens, {} merges", tokenizer.n_tokens(), tokenizer.vocab().merges.len());
    println!("{:28} {:8.1} ms", "first load", milliseconds(start.elapsed()));
    report("open the file", time(|| Gguf::open(&model))?);
    report("open and index", time(|| load(&model))?);
    for (name, text) in texts(arguments.next())? {
        let n_tokens = tokenizer.encode(&text, OPTIONS).len();
        let runs = time(|| Ok::<_, String>(tokenizer.encode(&text, OPTIONS)))?;
        let rate = text.len() as f64 / runs[RUNS / 2].as_secs_f64() / 1e6;
        report(&name, runs);
        println!("{:28} {n_tokens} tokens, {rate:.1} MB/s", "");
    }
    Ok(())
}

fn load(model: &str) -> Result<Tokenizer, Box<dyn std::error::Error>> {
    Ok(Tokenizer::from_gguf(&Gguf::open(model)?)?)
}

/// Texts of 100 kB: a given one, and some that are hard for careless merging.
fn texts(path: Option<String>) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut texts = Vec::new();
    if let Some(path) = path {
        let text = std::fs::read(&path)?;
        let one_line: Vec<u8> = text.iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }).collect();
        texts.push(("the text".to_owned(), text));
        let repeated = one_line.iter().copied().cycle().take(100_000.min(one_line.len() * 100_000));
        texts.push(("the text as one line".to_owned(), repeated.collect()));
    }
    for unit in ["a", " ", "\n", "😀", "<"] {
        texts.push((format!("100 kB of {unit:?}"), unit.repeat(100_000 / unit.len()).into_bytes()));
    }
    Ok(texts)
}

/// How long `work` takes, in ascending order.
fn time<T, E>(work: impl Fn() -> Result<T, E>) -> Result<Vec<Duration>, E> {
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        black_box(work()?);
        runs.push(start.elapsed());
    }
    runs.sort();
    Ok(runs)
}

fn report(name: &str, runs: Vec<Duration>) {
    println!("{name:28} {:8.1} ms (best {:.1})", milliseconds(runs[RUNS / 2]), milliseconds(runs[0]));
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
