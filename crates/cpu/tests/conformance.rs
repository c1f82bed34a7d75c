//! The CPU backend against the scalar reference: every instruction set of this machine, one to three threads, with
//! and without rounding of activations.

use lapidary_backend::conformance::{self, Activations, Tolerance};
use lapidary_cpu::{ActivationMode, CpuBackend, CpuConfig, Isa};

/// Some sixty units of rounding of `f32`: sums of hundreds of terms in sixteen parts stay far below.
const RELATIVE: f32 = 4e-6;

fn backends() -> Vec<(CpuBackend, Tolerance)> {
    let mut all = Vec::new();
    for isa in Isa::available() {
        for threads in 1..=3 {
            // Rounded and exact activations in turn, so that each instruction set and thread count sees both.
            for mode in [ActivationMode::Q8, ActivationMode::F32] {
                let activations = match mode {
                    ActivationMode::Q8 => Activations::Rounded8,
                    ActivationMode::F32 => Activations::Exact,
                };
                let backend = CpuBackend::new(CpuConfig { threads, activations: mode, isa });
                all.push((backend, Tolerance { relative: RELATIVE, activations }));
            }
        }
    }
    all
}

/// One test for each check; those that do not multiply matrices need not run in both activation modes.
macro_rules! conformance_tests {
    ($($name:ident: $modes:expr;)+) => {
        $(
            #[test]
            fn $name() {
                for (backend, tolerance) in backends().into_iter().step_by(3 - $modes) {
                    conformance::$name(&backend, &tolerance);
                }
            }
        )+

        #[test]
        fn every_check_has_a_test() {
            let tested = [$(stringify!($name)),+];
            let known: Vec<&str> = conformance::checks::<CpuBackend>().into_iter().map(|(name, _)| name).collect();
            assert_eq!(tested.as_slice(), known);
        }
    };
}

conformance_tests! {
    buffers: 1;
    embed: 1;
    gather: 1;
    rms_norm: 1;
    add_norm: 1;
    row_dots: 1;
    linear: 2;
    linear_of_every_type: 2;
    rope_table: 1;
    head_norm_rope: 1;
    kv_copy: 1;
    kv_blocks_travel: 1;
    kv_store_refuses_undefined: 1;
    attention: 1;
    attention_of_trees: 1;
    attention_ignores_block_layout: 1;
    attention_keeps_rows_apart: 1;
    gated_activation: 1;
    softcap: 1;
    route: 1;
    route_breaks_ties: 1;
    expert_linear: 2;
    combine: 1;
}
