//! What can go wrong while a file is made.

use std::path::{Path, PathBuf};

use lapidary_gguf::{GgufError, WriteError};

/// Result of a conversion.
pub type Result<T, E = ConvertError> = std::result::Result<T, E>;

/// Why a model cannot be converted or quantised.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A file that cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The output cannot be written.
    #[error("cannot write {path}{}: {source}", needs(.needed))]
    Write {
        /// The file.
        path: PathBuf,
        /// Bytes of the whole output, where known.
        needed: Option<u64>,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// Text that is not the JSON it should be.
    #[error("{path} is not valid JSON: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A file of the checkpoint that does not hold what it must.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: PathBuf,
        /// What was found and what was expected.
        problem: String,
    },
    /// The folder lacks a file.
    #[error("{dir} lacks {what}")]
    MissingFile {
        /// The folder.
        dir: PathBuf,
        /// The files and what names them.
        what: String,
    },
    /// A model that this converter does not know.
    #[error("{path} describes {found}; Gemma 3 and Gemma 4 text models can be converted")]
    Architecture {
        /// The configuration.
        path: PathBuf,
        /// `model_type` or `architectures`.
        found: String,
    },
    /// The checkpoint lacks a tensor that its configuration asks for.
    #[error("the checkpoint has no tensor {name}, of shape {shape:?}, which config.json asks for")]
    MissingTensor {
        /// Hugging Face name without the model's prefix.
        name: String,
        /// Expected shape, slowest dimension first.
        shape: Vec<u64>,
    },
    /// A tensor of another shape than the configuration says.
    #[error("tensor {name} in {path} has the shape {found:?}, config.json asks for {expected:?}")]
    Shape {
        /// Its name in the checkpoint.
        name: String,
        /// The shard.
        path: PathBuf,
        /// The shape found, slowest dimension first.
        found: Vec<u64>,
        /// The shape expected.
        expected: Vec<u64>,
    },
    /// Tensors that have no place in the model.
    #[error("the checkpoint holds tensors that this converter does not know: {}", list(.names))]
    UnknownTensors {
        /// Their names and shards.
        names: Vec<String>,
    },
    /// An option that makes no sense.
    #[error("{0}")]
    Option(String),
    /// Importance weights that do not fit the model.
    #[error("importance matrix: {0}")]
    Imatrix(String),
    /// A GGUF file that cannot be read or written.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Metadata or tensors that a GGUF file cannot hold.
    #[error("the output cannot be made: {0}")]
    Output(#[from] WriteError),
    /// A tensor that cannot be read or encoded.
    #[error("tensor {name}: {problem}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// The caller asked to stop.
    #[error("interrupted; nothing was written")]
    Cancelled,
}

impl ConvertError {
    pub(crate) fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Read { path, source }
    }

    pub(crate) fn file(path: &Path, problem: impl Into<String>) -> Self {
        Self::File { path: path.to_owned(), problem: problem.into() }
    }
}

fn needs(bytes: &Option<u64>) -> String {
    bytes.map(|n| format!(" ({n} bytes in all)")).unwrap_or_default()
}

/// The first names of a list that may be long.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
