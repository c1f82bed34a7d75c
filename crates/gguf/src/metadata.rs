//! Typed access to the metadata of a GGUF file.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{GgufError, Result};
use crate::value::{Array, Strings, Value};

/// All metadata of a file, in its order.
///
/// The typed getters accept any stored width that holds the value: a `u32` may be stored as `u8` or `i64`. Their
/// `opt_` forms give `None` when the key is absent, and still an error when it is there with another type.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(Arc<str>, Value)>,
    index: HashMap<Arc<str>, usize>,
}

impl Metadata {
    /// Adds an entry; false when the key is there already.
    pub(crate) fn insert(&mut self, key: Arc<str>, value: Value) -> bool {
        if self.index.contains_key(&key) {
            return false;
        }
        self.index.insert(Arc::clone(&key), self.entries.len());
        self.entries.push((key, value));
        true
    }

    /// All entries in the file's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    fn required(&self, key: &str) -> Result<&Value> {
        self.get(key).ok_or_else(|| GgufError::MissingKey(key.into()))
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<T> {
        let value = self.required(key)?;
        read(value).ok_or_else(|| GgufError::WrongType { key: key.into(), expected, found: value.describe() })
    }

    fn optional<T>(&self, key: &str, read: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        self.get(key).map(|_| read()).transpose()
    }

    /// An integer that fits `u32`.
    pub fn u32(&self, key: &str) -> Result<u32> {
        self.typed(key, "an unsigned 32-bit integer", |v| v.as_u64().and_then(|n| u32::try_from(n).ok()))
    }

    /// An integer that is not negative.
    pub fn u64(&self, key: &str) -> Result<u64> {
        self.typed(key, "an integer that is not negative", Value::as_u64)
    }

    /// An integer that fits `i64`.
    pub fn i64(&self, key: &str) -> Result<i64> {
        self.typed(key, "a signed integer", Value::as_i64)
    }

    /// A number.
    pub fn f32(&self, key: &str) -> Result<f32> {
        self.typed(key, "a number", Value::as_f32)
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<bool> {
        self.typed(key, "a boolean", Value::as_bool)
    }

    /// A string of valid UTF-8.
    pub fn str(&self, key: &str) -> Result<&str> {
        self.typed(key, "a string", Value::as_str)
    }

    /// An array.
    pub fn array(&self, key: &str) -> Result<&Array> {
        self.typed(key, "an array", Value::as_array)
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<&Strings> {
        self.typed(key, "an array of strings", |v| v.as_array().and_then(Array::strings))
    }

    /// An array of integers that are not negative.
    pub fn u64s(&self, key: &str) -> Result<Vec<u64>> {
        let expected = "an array of integers that are not negative";
        self.typed(key, expected, |v| v.as_array().and_then(Array::to_u64s))
    }

    /// An array of integers.
    pub fn i64s(&self, key: &str) -> Result<Vec<i64>> {
        self.typed(key, "an array of integers", |v| v.as_array().and_then(Array::to_i64s))
    }

    /// An array of floating-point numbers.
    pub fn f32s(&self, key: &str) -> Result<Vec<f32>> {
        self.typed(key, "an array of floating-point numbers", |v| v.as_array().and_then(Array::to_f32s))
    }

    /// An array of booleans.
    pub fn bools(&self, key: &str) -> Result<Vec<bool>> {
        self.typed(key, "an array of booleans", |v| v.as_array().and_then(Array::to_bools))
    }

    /// [`u32`](Self::u32), or `None` when the key is absent.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>> {
        self.optional(key, || self.u32(key))
    }

    /// [`u64`](Self::u64), or `None` when the key is absent.
    pub fn opt_u64(&self, key: &str) -> Result<Option<u64>> {
        self.optional(key, || self.u64(key))
    }

    /// [`i64`](Self::i64), or `None` when the key is absent.
    pub fn opt_i64(&self, key: &str) -> Result<Option<i64>> {
        self.optional(key, || self.i64(key))
    }

    /// [`f32`](Self::f32), or `None` when the key is absent.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>> {
        self.optional(key, || self.f32(key))
    }

    /// [`bool`](Self::bool), or `None` when the key is absent.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>> {
        self.optional(key, || self.bool(key))
    }

    /// [`str`](Self::str), or `None` when the key is absent.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>> {
        self.optional(key, || self.str(key))
    }

    /// [`array`](Self::array), or `None` when the key is absent.
    pub fn opt_array(&self, key: &str) -> Result<Option<&Array>> {
        self.optional(key, || self.array(key))
    }

    /// [`strings`](Self::strings), or `None` when the key is absent.
    pub fn opt_strings(&self, key: &str) -> Result<Option<&Strings>> {
        self.optional(key, || self.strings(key))
    }

    /// Checks that the arrays under `keys` are equally long, as those that describe the same tokens must be. Absent
    /// keys are passed over. Gives the common length, `None` when all are absent.
    ///
    /// # Errors
    /// When a key holds no array, or two arrays differ in length.
    pub fn equal_lengths(&self, keys: &[&str]) -> Result<Option<usize>> {
        let mut first: Option<(&str, usize)> = None;
        for &key in keys {
            let Some(array) = self.opt_array(key)? else { continue };
            match first {
                Some((other, expected)) if expected != array.len() => {
                    let (key, other, len) = (key.into(), other.into(), array.len());
                    return Err(GgufError::LengthMismatch { key, len, other, expected });
                }
                _ => first = Some((key, array.len())),
            }
        }
        Ok(first.map(|(_, len)| len))
    }
}
