//! Reads a GGUF file and writes it again: `copy_gguf INPUT OUTPUT`.
//!
//! Used by `tools/compare_with_ggml.py`.

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;

use lapidary_gguf::{Gguf, GgufWriter};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [input, output] = &args[..] else { return Err("usage: copy_gguf INPUT OUTPUT".into()) };
    let gguf = Gguf::open(input)?;
    let mut writer = GgufWriter::new();
    writer.set_all(gguf.metadata())?;
    for tensor in gguf.tensors() {
        writer.add_tensor(tensor.name(), tensor.shape(), tensor.ty()?)?;
    }
    let mut data = writer.begin(BufWriter::new(File::create(output)?))?;
    for tensor in gguf.tensors() {
        data.write_tensor(tensor.name(), &gguf.data(tensor)?)?;
    }
    data.finish()?;
    Ok(())
}
