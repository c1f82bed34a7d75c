//! Encodes raw little-endian `f32` rows: `encode_rows TYPE N_PER_ROW INPUT OUTPUT [IMPORTANCE]`.
//!
//! Used by `tools/compare_with_ggml.py`.

use std::error::Error;
use std::fs;
use std::time::Instant;

use lapidary_gguf::{GgmlType, block};

fn floats(path: &str) -> Result<Vec<f32>, Box<dyn Error>> {
    Ok(fs::read(path)?.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [ty, n_per_row, input, output, importance @ ..] = &args[..] else {
        return Err("usage: encode_rows TYPE N_PER_ROW INPUT OUTPUT [IMPORTANCE]".into());
    };
    let ty = GgmlType::from_name(ty).ok_or_else(|| format!("{ty} is no known type"))?;
    let x = floats(input)?;
    let importance = importance.first().map(|path| floats(path)).transpose()?;
    let mut out = Vec::new();
    let start = Instant::now();
    block::quantize(ty, &x, n_per_row.parse()?, importance.as_deref(), &mut out)?;
    println!("{:.6}", start.elapsed().as_secs_f64());
    fs::write(output, out)?;
    Ok(())
}
