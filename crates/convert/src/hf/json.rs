//! JSON files of a checkpoint.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::{ConvertError, Result};

/// Reads a file.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).map_err(ConvertError::read(path))?;
    serde_json::from_slice(&text).map_err(|source| ConvertError::Json { path: path.to_owned(), source })
}

/// Reads a file that may be absent.
pub fn read_optional<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    if path.is_file() { read(path).map(Some) } else { Ok(None) }
}
