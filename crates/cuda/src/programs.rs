//! The programs: which sources and definitions belong together.
//!
//! A program is compiled when it is first needed: one for operations on rows, one for each GGML type, one for each pair of
//! cache formats.

use lapidary_backend::KvFormat;
use lapidary_gguf::GgmlType;

const COMMON: (&str, &str) = ("common.cuh", include_str!("../kernels/common.cuh"));
const BLOCKS: (&str, &str) = ("blocks.cuh", include_str!("../kernels/blocks.cuh"));
const TURBO: (&str, &str) = ("turbo.cuh", include_str!("../kernels/turbo.cuh"));
const ROWS: (&str, &str) = ("rows.cu", include_str!("../kernels/rows.cu"));
const MATRIX: (&str, &str) = ("matrix.cu", include_str!("../kernels/matrix.cu"));
const CACHE: (&str, &str) = ("cache.cu", include_str!("../kernels/cache.cu"));

/// A program to compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// Norms, rotation, activation functions, expert choice.
    Rows,
    /// Products with matrices of a type.
    Matrix(GgmlType),
    /// Storing and attending keys of the first format and values of the second.
    Cache(KvFormat, KvFormat),
}

impl Program {
    /// Every program.
    pub fn all() -> Vec<Self> {
        let matrices = GgmlType::ALL.into_iter().map(Self::Matrix);
        let caches = KvFormat::ALL.into_iter().flat_map(|k| KvFormat::ALL.map(|v| Self::Cache(k, v)));
        std::iter::once(Self::Rows).chain(matrices).chain(caches).collect()
    }

    /// A name for messages and files.
    pub fn name(self) -> String {
        match self {
            Self::Rows => "rows".into(),
            Self::Matrix(ty) => format!("matrix-{}", ty.name().to_lowercase()),
            Self::Cache(keys, values) => format!("cache-{keys}-{values}"),
        }
    }

    /// The source text: its files one after the other.
    pub fn source(self) -> String {
        let files: &[(&str, &str)] = match self {
            Self::Rows => &[COMMON, ROWS],
            Self::Matrix(_) => &[COMMON, BLOCKS, MATRIX],
            Self::Cache(..) => &[COMMON, TURBO, CACHE],
        };
        files.iter().map(|(name, text)| format!("#line 1 \"{name}\"\n{text}\n")).collect()
    }

    /// Options of the compiler for the architecture `arch` (`sm_90`).
    pub fn options(self, arch: &str) -> Vec<String> {
        // Without contraction the order of roundings is the one written.
        let mut options =
            vec![format!("--gpu-architecture={arch}"), "--std=c++17".into(), "-fmad=false".into()];
        match self {
            Self::Rows => {}
            Self::Matrix(ty) => options.push(format!("-DFORMAT={}", ty.name())),
            Self::Cache(keys, values) => {
                options.push(format!("-DKEYS={}", format_bits(keys)));
                options.push(format!("-DVALUES={}", format_bits(values)));
            }
        }
        options
    }

    /// The names of its kernels.
    pub fn kernels(self) -> &'static [&'static str] {
        match self {
            Self::Rows => &[
                "rms_norm",
                "add_norm",
                "rope_table",
                "head_norm_rope",
                "gated_activation",
                "softcap",
                "gather",
                "route",
                "group_choices",
                "combine",
                "clear",
            ],
            Self::Matrix(_) => &[
                "linear_1",
                "linear_2",
                "linear_4",
                "linear_8",
                "experts_1",
                "experts_8",
                "embed",
                "row_dots",
            ],
            Self::Cache(..) => {
                &["kv_store", "kv_copy", "attend_1", "attend_2", "attend_4", "attend_8", "merge"]
            }
        }
    }
}

/// A format as the kernels number it: by the bits of an element.
fn format_bits(format: KvFormat) -> u32 {
    match format {
        KvFormat::F32 => 32,
        KvFormat::F16 => 16,
        turbo => turbo.turbo_bits().expect("the others are TurboQuant formats"),
    }
}
