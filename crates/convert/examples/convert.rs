//! Converts a Hugging Face folder, or quantises a GGUF file:
//! `convert INPUT OUTPUT TYPE [IMATRIX]`.

use std::path::Path;
use std::process::ExitCode;

use lapidary_convert::{ConvertOptions, FileType, Imatrix, QuantizeOptions, Report, convert, quantize};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(report) => {
            println!("{} tensors, {} bytes, {:.2} s", report.tensors, report.bytes, report.seconds);
            report.notes.iter().for_each(|note| println!("note: {note}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<Report, Box<dyn std::error::Error>> {
    let [input, output, ty, rest @ ..] = arguments else {
        return Err("usage: convert INPUT OUTPUT TYPE [IMATRIX]".into());
    };
    let (input, output) = (Path::new(input), Path::new(output));
    let file_type = FileType::from_name(ty).ok_or_else(|| format!("unknown type {ty}"))?;
    let imatrix = rest.first().map(Imatrix::open).transpose()?;
    if input.is_dir() {
        let options = ConvertOptions { imatrix, ..ConvertOptions::new(file_type) };
        return Ok(convert(input, output, &options, &mut |_| ())?);
    }
    let options = QuantizeOptions { imatrix, ..QuantizeOptions::default() };
    Ok(quantize(input, output, file_type, &options, &mut |_| ())?)
}
