//! Typed access to the metadata keys of one architecture.

use std::ops::RangeInclusive;

use lapidary_gguf::{Array, Metadata, Value};

use crate::error::{EngineError, Result};

/// The keys of `gemma3.*` or `gemma4.*`.
pub struct Keys<'a> {
    metadata: &'a Metadata,
    prefix: &'static str,
}

impl<'a> Keys<'a> {
    pub fn new(metadata: &'a Metadata, prefix: &'static str) -> Self {
        Self { metadata, prefix }
    }

    /// The full name of a key.
    pub fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// A required size within bounds.
    pub fn size(&self, key: &str, bounds: RangeInclusive<usize>) -> Result<usize> {
        let name = self.name(key);
        let found = self.metadata.u64(&name)?;
        usize::try_from(found).ok().filter(|n| bounds.contains(n)).ok_or_else(|| {
            let problem = format!("{found} is outside {} to {}", bounds.start(), bounds.end());
            EngineError::metadata(name, problem)
        })
    }

    /// An optional size up to `max`.
    pub fn opt_size(&self, key: &str, max: usize) -> Result<Option<usize>> {
        match self.metadata.get(&self.name(key)) {
            None => Ok(None),
            Some(_) => self.size(key, 0..=max).map(Some),
        }
    }

    /// A required number above zero.
    pub fn positive(&self, key: &str) -> Result<f32> {
        let name = self.name(key);
        let found = self.metadata.f32(&name)?;
        if found > 0.0 && found.is_finite() {
            return Ok(found);
        }
        Err(EngineError::metadata(name, format!("{found} is not a positive number")))
    }

    pub fn opt_float(&self, key: &str) -> Result<Option<f32>> {
        Ok(self.metadata.opt_f32(&self.name(key))?)
    }

    pub fn opt_str(&self, key: &str) -> Result<Option<&'a str>> {
        Ok(self.metadata.opt_str(&self.name(key))?)
    }

    /// One size a layer, from a number that holds for all or an array. `default` stands in for a missing key.
    pub fn per_layer(&self, key: &str, n_layers: usize, default: Option<&[usize]>) -> Result<Vec<usize>> {
        const MAX: u64 = 1 << 24;
        let name = self.name(key);
        let check = |n: u64| {
            let problem = || format!("{n} is larger than {MAX}");
            if n <= MAX { Ok(n as usize) } else { Err(EngineError::metadata(name.clone(), problem())) }
        };
        match (self.metadata.get(&name), default) {
            (None, Some(default)) => Ok(default.to_vec()),
            (Some(Value::Array(array)), _) => {
                let found = first_values(&name, array, n_layers)?;
                let count = |value: Value| {
                    let not_a_count =
                        || EngineError::metadata(name.clone(), "holds something other than counts");
                    value.as_u64().ok_or_else(not_a_count).and_then(check)
                };
                found.into_iter().map(count).collect()
            }
            _ => Ok(vec![check(self.metadata.u64(&name)?)?; n_layers]),
        }
    }

    /// Which layers slide: from an array of booleans or integers (true = sliding), or from a period `n` (every
    /// `n`-th layer is full). Absent: `None`.
    pub fn sliding_pattern(&self, key: &str, n_layers: usize) -> Result<Option<Vec<bool>>> {
        let name = self.name(key);
        let array = match self.metadata.get(&name) {
            None => return Ok(None),
            Some(Value::Array(array)) => array,
            Some(_) => {
                let period = self.size(key, 0..=u32::MAX as usize)?;
                return Ok(Some((0..n_layers).map(|i| period == 0 || i % period != period - 1).collect()));
            }
        };
        let flag = |value: Value| {
            let neither = || EngineError::metadata(name.clone(), "holds neither booleans nor integers");
            value.as_bool().or(value.as_u64().map(|n| n != 0)).ok_or_else(neither)
        };
        first_values(&name, array, n_layers)?.into_iter().map(flag).collect::<Result<_>>().map(Some)
    }
}

/// The first `n` elements of an array of numbers or booleans; the rest of it, however long, is left alone.
fn first_values(name: &str, array: &Array, n: usize) -> Result<Vec<Value>> {
    if array.len() < n {
        return Err(EngineError::metadata(name, format!("{} entries for {n} layers", array.len())));
    }
    let values = array.fixed().ok_or_else(|| EngineError::metadata(name, "holds no numbers"))?;
    Ok(values.take(n).collect())
}
