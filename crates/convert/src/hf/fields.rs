//! Typed access to the fields of `config.json`.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::json;
use crate::error::{ConvertError, Result};

/// The text model's fields: those of `text_config` where there is one, before those of the whole.
pub struct Fields {
    path: PathBuf,
    map: Map<String, Value>,
}

impl Fields {
    /// Reads `config.json` of a folder.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        if !path.is_file() {
            return Err(ConvertError::MissingFile { dir: dir.to_owned(), what: "config.json".into() });
        }
        let mut map: Map<String, Value> = json::read(&path)?;
        if let Some(Value::Object(text)) = map.remove("text_config") {
            map.extend(text);
        }
        Ok(Self { path, map })
    }

    /// Fields that come from no file; `name` stands for it in messages.
    pub fn from_map(map: Map<String, Value>, name: &str) -> Self {
        Self { path: name.into(), map }
    }

    /// Fields nested in another; errors name the same file.
    pub fn nested(&self, key: &str) -> Result<Option<Self>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self { path: self.path.clone(), map: map.clone() })),
            Some(other) => Err(self.wrong(key, other, "an object")),
        }
    }

    /// The field's value; null counts as absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// Names of all fields.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.map.keys()
    }

    /// The configuration file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An error about this file.
    pub fn problem(&self, problem: impl Into<String>) -> ConvertError {
        ConvertError::file(&self.path, problem)
    }

    fn wrong(&self, key: &str, found: &Value, expected: &str) -> ConvertError {
        let found: String = found.to_string().chars().take(60).collect();
        self.problem(format!("'{key}' is {found}, expected {expected}"))
    }

    fn missing(&self, key: &str) -> ConvertError {
        self.problem(format!("'{key}' is missing"))
    }

    /// A count from 0 to 2^30.
    pub fn opt_count(&self, key: &str) -> Result<Option<u64>> {
        const MAX: u64 = 1 << 30;
        let Some(value) = self.get(key) else { return Ok(None) };
        let count = value.as_u64().filter(|&n| n <= MAX);
        count.map(Some).ok_or_else(|| self.wrong(key, value, "a count"))
    }

    /// A count that must be there, at least 1.
    pub fn count(&self, key: &str) -> Result<u64> {
        match self.opt_count(key)? {
            None => Err(self.missing(key)),
            Some(0) => Err(self.problem(format!("'{key}' is 0"))),
            Some(n) => Ok(n),
        }
    }

    /// A count at least 1, or `default` when absent.
    pub fn count_or(&self, key: &str, default: u64) -> Result<u64> {
        if self.get(key).is_some() { self.count(key) } else { Ok(default) }
    }

    /// A finite number.
    pub fn opt_number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_f64().filter(|x| x.is_finite()).map(Some).ok_or_else(|| self.wrong(key, value, "a number"))
    }

    /// A boolean, false when absent.
    pub fn flag(&self, key: &str) -> Result<bool> {
        let Some(value) = self.get(key) else { return Ok(false) };
        value.as_bool().ok_or_else(|| self.wrong(key, value, "true or false"))
    }

    /// A string.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, value, "a string"))
    }

    /// An array of strings.
    pub fn opt_strings(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let strings = value.as_array().and_then(|a| a.iter().map(Value::as_str).collect());
        strings.map(Some).ok_or_else(|| self.wrong(key, value, "an array of strings"))
    }
}
