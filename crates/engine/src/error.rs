//! Errors of the engine.

use lapidary_backend::BackendError;
use lapidary_gguf::GgufError;

/// Result of an engine operation.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;

/// What can go wrong between a file and its tokens.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The file's container or metadata.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The device.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The model is of a kind this engine does not run.
    #[error("the model's architecture is '{0}'; this engine runs gemma3 and gemma4")]
    Architecture(String),
    /// Metadata whose value makes no model.
    #[error("metadata {key}: {problem}")]
    Metadata {
        /// The key.
        key: String,
        /// What is wrong with its value.
        problem: String,
    },
    /// A tensor the model needs is not in the file.
    #[error("the file holds no tensor {0}; it may be incomplete, or a vocabulary-only file")]
    MissingTensor(String),
    /// A tensor that cannot be used.
    #[error("tensor {name}: {problem}")]
    Tensor {
        /// Tensor name.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor of an unexpected shape.
    #[error("tensor {name} has shape {found}, expected {expected} (fastest dimension first)")]
    TensorShape {
        /// Tensor name.
        name: String,
        /// Shape in the file.
        found: String,
        /// Shape the configuration asks for.
        expected: String,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the model's vocabulary of {vocab}")]
    TokenId {
        /// The id.
        id: u32,
        /// Number of tokens.
        vocab: usize,
    },
    /// More positions than the cache was made for.
    #[error("the text needs {needed} positions, the context holds {context}; raise -c, or shorten the text")]
    ContextFull {
        /// Positions needed.
        needed: usize,
        /// Positions the sequence may have.
        context: usize,
    },
    /// A key or value that a compressed cache cannot hold.
    #[error(
        "layer {layer}, position {position}: the {part} is not finite, which a compressed cache cannot hold; the \
         model's weights may be damaged, or its activations overflow (see with --kv f32)"
    )]
    NotFinite {
        /// "key" or "value".
        part: &'static str,
        /// Layer of the model.
        layer: usize,
        /// Position in its sequence.
        position: u32,
    },
    /// The rows' keys and values do not fit the memory that the cache may take.
    #[error(
        "the cache of keys and values would take {needed} bytes, its limit is {budget}; allow more (--kv-memory), use a \
         compressed format (--kv tq8 or tq4), or a shorter text"
    )]
    KvBudget {
        /// Bytes needed.
        needed: usize,
        /// Bytes allowed.
        budget: usize,
    },
    /// A sequence cannot go back to a length whose window was released.
    #[error(
        "cannot cut the sequence back to {length} positions: the sliding window kept only those from {kept}"
    )]
    WindowReleased {
        /// Length asked for.
        length: usize,
        /// First position still stored in the sliding layers.
        kept: usize,
    },
}

impl EngineError {
    /// An error of the cache, with the model's layer in place of the pool's.
    pub(crate) fn in_layer(error: BackendError, layer: usize) -> Self {
        match error {
            BackendError::NotFinite { part, position, .. } => Self::NotFinite { part, layer, position },
            other => Self::Backend(other),
        }
    }

    pub(crate) fn tensor(name: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Tensor { name: name.into(), problem: problem.into() }
    }

    pub(crate) fn metadata(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Metadata { key: key.into(), problem: problem.into() }
    }
}
