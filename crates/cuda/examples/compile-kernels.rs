//! Compiles every program for the architectures named, without a GPU: `compile-kernels sm_80 sm_90a sm_120`.

use std::process::ExitCode;
use std::time::Instant;

use lapidary_cuda::compile;
use lapidary_cuda::programs::Program;

fn main() -> ExitCode {
    let (major, minor) = match compile::version() {
        Ok(version) => version,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = 0;
    for arch in std::env::args().skip(1) {
        let (begin, mut bytes) = (Instant::now(), 0);
        for program in Program::all() {
            match compile::compile(program, &arch) {
                Ok(cubin) => bytes += cubin.len(),
                Err(error) => {
                    eprintln!("{error}");
                    failed += 1;
                }
            }
        }
        let n = Program::all().len();
        println!(
            "NVRTC {major}.{minor}, {arch}: {n} programs, {bytes} bytes, {:.1} s",
            begin.elapsed().as_secs_f64()
        );
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
