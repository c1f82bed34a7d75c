//! The CUDA backend against the scalar reference, on the first GPU; skipped, with the reason printed, where there is none.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use lapidary_backend::conformance::{self, Activations, Tolerance};
use lapidary_cuda::cache::ProgramCache;
use lapidary_cuda::{CudaBackend, CudaConfig, CudaError, devices};

/// Some sixty units of rounding of `f32`, as for the CPU.
const TOLERANCE: Tolerance = Tolerance { relative: 4e-6, activations: Activations::Exact };

/// The backend, for one test at a time: an error that one enqueues is told at the next download, whoever asks.
fn backend() -> Option<MutexGuard<'static, CudaBackend>> {
    static BACKEND: OnceLock<Option<Mutex<CudaBackend>>> = OnceLock::new();
    let open = || match devices() {
        Err(reason @ (CudaError::NoDriver | CudaError::NoDevices(_))) => {
            // Not by eprintln!, whose output the test harness keeps to itself.
            let line = format!("skipped: the CUDA conformance suite needs a GPU: {reason}\n");
            std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
            None
        }
        _ => {
            let program_cache = Some(ProgramCache::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/programs")));
            Some(Mutex::new(CudaBackend::new(CudaConfig { device: 0, program_cache }).unwrap()))
        }
    };
    let backend = BACKEND.get_or_init(open).as_ref()?;
    Some(backend.lock().unwrap_or_else(PoisonError::into_inner))
}

/// One test for each check.
macro_rules! conformance_tests {
    ($($name:ident)+) => {
        $(
            #[test]
            fn $name() {
                if let Some(backend) = backend() {
                    conformance::$name(&*backend, &TOLERANCE);
                }
            }
        )+

        #[test]
        fn every_check_has_a_test() {
            let tested = [$(stringify!($name)),+];
            let known: Vec<&str> = conformance::checks::<CudaBackend>().into_iter().map(|(name, _)| name).collect();
            assert_eq!(tested.as_slice(), known);
        }
    };
}

conformance_tests! {
    buffers
    embed
    gather
    rms_norm
    add_norm
    row_dots
    linear
    linear_of_every_type
    rope_table
    head_norm_rope
    kv_copy
    kv_blocks_travel
    kv_store_refuses_undefined
    attention
    attention_of_trees
    attention_ignores_block_layout
    attention_keeps_rows_apart
    gated_activation
    softcap
    route
    route_breaks_ties
    expert_linear
    combine
}
