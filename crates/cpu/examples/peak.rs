//! What this machine can do at most: additions in a chain (the clock), float and 8-bit products from registers,
//! bytes read from memory. The limits that the kernels are measured against.
//!
//! ```text
//! cargo run --release -p lapidary-cpu --example peak
//! ```

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("this example knows the instructions of x86-64 only");
}

#[cfg(target_arch = "x86_64")]
fn main() {
    x86::main();
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::hint::black_box;
    use std::time::Instant;

    use lapidary_cpu::pool::Pool;
    use lapidary_cpu::read_bandwidth;

    /// Rounds of a measured loop.
    const ROUNDS: u64 = 20_000_000;
    /// Repetitions, of which the best counts: a limit is what the machine reached once.
    const REPEAT: usize = 5;

    pub fn main() {
        if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
            eprintln!("this machine has no AVX2");
            return;
        }
        // SAFETY: the features were looked for.
        unsafe {
            println!("clock                     {:7.2} GHz", best(add_chain));
            println!("f32 products, one thread  {:7.1} GFLOP/s", best(|| float_products()) * 12.0 * 16.0);
            println!("8-bit, multiply and widen {:7.1} GOP/s", best(|| byte_products::<true>()) * 6.0 * 64.0);
            println!(
                "8-bit, multiply, 16 bits  {:7.1} GOP/s",
                best(|| byte_products::<false>()) * 6.0 * 64.0
            );
        }
        for threads in 1..=std::thread::available_parallelism().map_or(1, |n| n.get()) {
            let bandwidth = read_bandwidth(&Pool::new(threads));
            println!("reading, {threads} threads       {:7.1} GB/s", bandwidth / 1e9);
        }
    }

    /// The most rounds in a nanosecond.
    fn best(mut run: impl FnMut()) -> f64 {
        let mut best = 0.0f64;
        for _ in 0..REPEAT {
            let begin = Instant::now();
            run();
            best = best.max(ROUNDS as f64 / begin.elapsed().as_nanos() as f64);
        }
        best
    }

    /// One addition a round, each waiting for the one before: a cycle.
    fn add_chain() {
        let mut x = 1u64;
        for i in 0..ROUNDS {
            // SAFETY: register arithmetic only.
            unsafe { asm!("add {0}, {1}", inout(reg) x, in(reg) i, options(pure, nomem, nostack)) };
        }
        black_box(x);
    }

    /// Twelve multiply-adds of eight floats a round.
    #[target_feature(enable = "avx2,fma")]
    fn float_products() {
        let factor = black_box(_mm256_set1_ps(0.5));
        let mut sums = [_mm256_set1_ps(1.0); 12];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, factor, factor);
            }
        }
        black_box(sums);
    }

    /// Six products of 32 bytes a round, each of the one before; with `WIDEN` as many again of 16 bits, added.
    #[target_feature(enable = "avx2,fma")]
    fn byte_products<const WIDEN: bool>() {
        let x = black_box(_mm256_set1_epi8(1));
        let one = black_box(_mm256_set1_epi16(1));
        let mut products = [_mm256_set1_epi8(1); 6];
        let mut sums = [_mm256_setzero_si256(); 6];
        for _ in 0..ROUNDS {
            for (product, sum) in products.iter_mut().zip(&mut sums) {
                *product = _mm256_maddubs_epi16(*product, x);
                if WIDEN {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(*product, one));
                }
            }
        }
        black_box((products, sums));
    }
}
