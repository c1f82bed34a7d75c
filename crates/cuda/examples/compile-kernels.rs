//! Compiles every program for the architectures named, without a GPU: `compile-kernels sm_80 sm_90a sm_120`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    let failed = AtomicUsize::new(0);
    for arch in std::env::args().skip(1) {
        let (begin, bytes, next) = (Instant::now(), AtomicUsize::new(0), AtomicUsize::new(0));
        let programs = Program::all();
        let work = || {
            while let Some(&program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                match compile::compile(program, &arch) {
                    Ok(cubin) => {
                        bytes.fetch_add(cubin.len(), Ordering::Relaxed);
                    }
                    Err(error) => {
                        eprintln!("{error}");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let (n, bytes, seconds) = (programs.len(), bytes.into_inner(), begin.elapsed().as_secs_f64());
        println!("NVRTC {major}.{minor}, {arch}: {n} programs, {bytes} bytes, {seconds:.1} s");
    }
    if failed.into_inner() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
