//! What can go wrong in a backend.

/// Result of a backend operation.
pub type Result<T, E = BackendError> = std::result::Result<T, E>;

/// An error of the device or of what was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The device has too little free memory.
    #[error("out of memory on {device}: {what} needs {needed} bytes")]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// What was to be allocated.
        what: String,
        /// Bytes asked for.
        needed: usize,
    },
    /// A weight matrix whose bytes do not match its shape.
    #[error("{name}: {rows} x {cols} of {ty} takes {expected} bytes, found {found}")]
    MatrixSize {
        /// Tensor name.
        name: String,
        /// Element type.
        ty: lapidary_gguf::GgmlType,
        /// Rows of the matrix, all stacked ones counted.
        rows: usize,
        /// Elements a row.
        cols: usize,
        /// Bytes the shape takes.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The backend has no kernel for this.
    #[error("{device} cannot run {what}")]
    Unsupported {
        /// The device's name.
        device: String,
        /// What was asked for.
        what: String,
    },
    /// Bytes that are no block of the pool.
    #[error("a block of keys and values has {expected} bytes, found {found}")]
    BlockSize {
        /// Bytes of a block.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A key or value that a compressed cache cannot hold: it is infinite or not a number.
    #[error("the {part} of position {position} in layer {layer} of its cache group is not finite")]
    NotFinite {
        /// "key" or "value".
        part: &'static str,
        /// The layer's place in the pool.
        layer: usize,
        /// Position in its sequence.
        position: u32,
    },
    /// The device or its driver failed.
    #[error("{device}: {message}")]
    Device {
        /// The device's name.
        device: String,
        /// What the driver said.
        message: String,
    },
}
