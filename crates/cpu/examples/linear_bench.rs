//! Speed of the matrix products.
//!
//! ```text
//! cargo run --release -p lapidary-cpu --example linear_bench -- [key=value]...
//!   what=gemv,few,gemm   one activation row; 2, 4, 8 rows against one; 64 and 512 rows
//!   types=Q4_K,Q5_0      threads=1,2      isa=avx2,avx512-vnni,portable
//!   shapes=2048x640      rows x columns of a matrix
//!   mib=512              weights that one pass reads      repeat=7   passes, of which the median is printed
//! ```
//!
//! A pass multiplies one matrix after the other, each in a parallel phase of its own, through a set of weights larger
//! than the caches. Reading the same bytes and adding them up, in turns with the passes, gives the bandwidth that they
//! are compared with.

use std::hint::black_box;
use std::time::Instant;

use lapidary_cpu::linear::{
    ActivationMode, Input, Isa, Linear, Output, Product, RowMap, WeightMatrix, Workspace,
};
use lapidary_cpu::pool::Pool;
use lapidary_gguf::GgmlType;

/// What the command line asks for.
struct Options {
    what: Vec<String>,
    types: Vec<GgmlType>,
    shapes: Vec<(usize, usize)>,
    threads: Vec<usize>,
    isas: Vec<Isa>,
    weight_bytes: usize,
    repeat: usize,
}

impl Options {
    fn parse() -> Self {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let value = |key: &str, default: &str| -> Vec<String> {
            let found = args.iter().find_map(|arg| arg.strip_prefix(key)?.strip_prefix('='));
            found.unwrap_or(default).split(',').map(str::to_owned).collect()
        };
        let number = |text: &String| text.parse().unwrap_or_else(|_| panic!("{text} is not a number"));
        let shape = |text: &String| {
            let (rows, cols) = text.split_once('x').unwrap_or_else(|| panic!("{text} is not ROWSxCOLUMNS"));
            (number(&rows.to_owned()), number(&cols.to_owned()))
        };
        let isas = value("isa", "avx2,avx512-vnni");
        Self {
            what: value("what", "gemv,few,gemm"),
            types: value("types", "Q4_K,Q5_0,Q6_K,Q8_0,Q4_0,BF16,F32")
                .iter()
                .map(|name| GgmlType::from_name(name).unwrap_or_else(|| panic!("no type {name}")))
                .collect(),
            shapes: value("shapes", "2048x640,640x2048,16384x2816").iter().map(shape).collect(),
            threads: value("threads", "1,2").iter().map(number).collect(),
            isas: Isa::available()
                .into_iter()
                .filter(|isa| isas.iter().any(|name| name == isa.name()))
                .collect(),
            weight_bytes: number(&value("mib", "512")[0]) << 20,
            repeat: number(&value("repeat", "7")[0]),
        }
    }

    fn wants(&self, what: &str) -> bool {
        self.what.iter().any(|w| w == what)
    }
}

/// Weights of one type and shape, as many matrices as fill the asked size.
struct Weights {
    ty: GgmlType,
    shape: (usize, usize),
    bytes: Vec<u8>,
}

impl Weights {
    /// `None` when the columns are no multiple of the type's block.
    fn new(ty: GgmlType, shape: (usize, usize), total: usize) -> Option<Self> {
        let one = ty.row_bytes(shape.1)? * shape.0;
        // Any codes do, but exponents of floats must stay away from subnormals, which processors are slow at.
        let pattern: Vec<u8> = match ty {
            GgmlType::F32 => (0..2048).flat_map(|i| (i as f32 * 0.61).cos().to_le_bytes()).collect(),
            GgmlType::BF16 => {
                (0..4096).flat_map(|i| half::bf16::from_f32((i as f32 * 0.61).cos()).to_le_bytes()).collect()
            }
            GgmlType::F16 => {
                (0..4096).flat_map(|i| half::f16::from_f32((i as f32 * 0.61).cos()).to_le_bytes()).collect()
            }
            _ => (0..8192u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 & 0x3b | 0x08).collect(),
        };
        let mut bytes = vec![0; one * total.div_ceil(one)];
        for chunk in bytes.chunks_mut(pattern.len()) {
            let n = chunk.len();
            chunk.copy_from_slice(&pattern[..n]);
        }
        Some(Self { ty, shape, bytes })
    }

    fn matrices(&self) -> impl Iterator<Item = WeightMatrix<'_>> {
        let (rows, cols) = self.shape;
        let one = self.ty.row_bytes(cols).unwrap() * rows;
        self.bytes.chunks_exact(one).map(move |bytes| WeightMatrix::new(self.ty, rows, cols, bytes).unwrap())
    }
}

/// Seconds to multiply the first `n` matrices with `n_rows` rows of activations.
fn multiply(linear: Linear, weights: &Weights, n: usize, n_rows: usize, workspace: &mut Workspace) -> f64 {
    let (rows, cols) = weights.shape;
    let x: Vec<f32> = (0..n_rows * cols).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut out = vec![0.0; n_rows * rows];
    let begin = Instant::now();
    for weights in weights.matrices().take(n) {
        let product = Product { weights, out_col: 0, rows: RowMap::Identity(n_rows) };
        let output = Output { data: &mut out, stride: rows };
        linear.run(&[product], Input { x: &x, n_rows, cols }, output, workspace);
    }
    let seconds = begin.elapsed().as_secs_f64();
    black_box(out);
    seconds
}

/// Seconds to read `bytes`.
fn read(pool: &Pool, bytes: &[u8]) -> f64 {
    const PART: usize = 256 * 1024;
    let begin = Instant::now();
    pool.run(bytes.len().div_ceil(PART), |index, _| {
        let part = &bytes[index * PART..bytes.len().min((index + 1) * PART)];
        let mut sums = [0u64; 16];
        for line in part.as_chunks::<128>().0 {
            for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
            }
        }
        black_box(sums);
    });
    begin.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn best(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn main() {
    let options = Options::parse();
    for &ty in &options.types {
        for &shape in &options.shapes {
            let Some(weights) = Weights::new(ty, shape, options.weight_bytes) else { continue };
            for &n_threads in &options.threads {
                let pool = Pool::new(n_threads);
                for &isa in &options.isas {
                    let linear = Linear { pool: &pool, isa, mode: ActivationMode::Q8 };
                    let name = format!(
                        "{ty:6} {:>11} {n_threads} threads {isa:11}",
                        format!("{}x{}", shape.0, shape.1)
                    );
                    if options.wants("gemv") {
                        gemv(&options, linear, &weights, &name);
                    }
                    if options.wants("few") {
                        few(&options, linear, &weights, &name);
                    }
                    if options.wants("gemm") {
                        gemm(&options, linear, &weights, &name);
                    }
                }
            }
        }
    }
}

/// One activation row: weight bytes a second beside the bandwidth of reading them.
fn gemv(options: &Options, linear: Linear, weights: &Weights, name: &str) {
    let mut workspace = Workspace::default();
    let mut seconds = (Vec::new(), Vec::new());
    multiply(linear, weights, usize::MAX, 1, &mut workspace);
    for _ in 0..options.repeat {
        seconds.0.push(read(linear.pool, &weights.bytes));
        seconds.1.push(multiply(linear, weights, usize::MAX, 1, &mut workspace));
    }
    let ratios = seconds.0.iter().zip(&seconds.1).map(|(read, multiply)| read / multiply).collect();
    let rate = |seconds: f64| weights.bytes.len() as f64 / seconds / 1e9;
    println!(
        "gemv {name}: {:6.2} GB/s, reading {:6.2} GB/s, {:4.0} % (best {:6.2} and {:6.2} GB/s)",
        rate(median(seconds.1.clone())),
        rate(median(seconds.0.clone())),
        100.0 * median(ratios),
        rate(best(&seconds.1)),
        rate(best(&seconds.0)),
    );
}

/// A few activation rows: the time of a pass relative to that of one row.
fn few(options: &Options, linear: Linear, weights: &Weights, name: &str) {
    let mut workspace = Workspace::default();
    let mut seconds = [const { Vec::new() }; 4];
    for _ in 0..options.repeat {
        for (seconds, n_rows) in seconds.iter_mut().zip([1, 2, 4, 8]) {
            seconds.push(multiply(linear, weights, usize::MAX, n_rows, &mut workspace));
        }
    }
    let [one, two, four, eight] = seconds.map(|seconds| best(&seconds));
    let (two, four, eight) = (two / one, four / one, eight / one);
    println!("few  {name}: 2 rows {two:.2}, 4 rows {four:.2}, 8 rows {eight:.2} times one (best passes)");
}

/// Many activation rows: operations a second.
fn gemm(options: &Options, linear: Linear, weights: &Weights, name: &str) {
    let mut workspace = Workspace::default();
    let ops = |n_rows: usize| 2.0 * (weights.shape.0 * weights.shape.1 * n_rows) as f64;
    let rates = [64, 512].map(|n_rows| {
        // About a billion operations a pass: short enough to fall between the turns of other programs at times.
        let n = ((1e9 / ops(n_rows)) as usize).clamp(1, weights.matrices().count());
        multiply(linear, weights, n, n_rows, &mut workspace);
        let seconds: Vec<f64> =
            (0..options.repeat).map(|_| multiply(linear, weights, n, n_rows, &mut workspace)).collect();
        let work = n as f64 * ops(n_rows) / 1e9;
        (work / best(&seconds), work / median(seconds))
    });
    let [few, many] = rates;
    println!(
        "gemm {name}: 64 rows {:6.1} (best {:6.1}), 512 rows {:6.1} (best {:6.1}) GOP/s",
        few.1, few.0, many.1, many.0
    );
}
