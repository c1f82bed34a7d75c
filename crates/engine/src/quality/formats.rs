//! A pair of cache formats.

use std::fmt;
use std::str::FromStr;

use lapidary_backend::KvFormat;

use crate::kv::KvSize;
use crate::model::Config;

/// Formats of keys and of values. Written `tq8`, or `f16/tq8` (keys first) when they differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvFormats {
    /// Format of keys.
    pub keys: KvFormat,
    /// Format of values.
    pub values: KvFormat,
}

impl KvFormats {
    /// Every pair of `formats`, keys outermost.
    pub fn pairs(formats: &[KvFormat]) -> Vec<Self> {
        formats.iter().flat_map(|&keys| formats.iter().map(move |&values| Self { keys, values })).collect()
    }

    /// What a cache in these formats takes.
    pub fn size(self, config: &Config) -> KvSize {
        KvSize::new(config, self.keys, self.values)
    }

    /// Whether both formats can store the heads of a model.
    pub fn support(self, config: &Config) -> bool {
        config.cache_groups.iter().all(|g| [self.keys, self.values].iter().all(|f| f.supports(g.head_dim)))
    }
}

impl fmt::Display for KvFormats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.keys == self.values {
            write!(f, "{}", self.keys)
        } else {
            write!(f, "{}/{}", self.keys, self.values)
        }
    }
}

impl FromStr for KvFormats {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (keys, values) = text.split_once('/').unwrap_or((text, text));
        Ok(Self { keys: keys.parse()?, values: values.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_reads_as_it_is_written() {
        let pairs = KvFormats::pairs(&KvFormat::ALL);
        assert_eq!(pairs.len(), KvFormat::ALL.len() * KvFormat::ALL.len());
        for pair in pairs {
            assert_eq!(pair.to_string().parse(), Ok(pair));
        }
        assert_eq!("f16/f32".parse(), Ok(KvFormats { keys: KvFormat::F16, values: KvFormat::F32 }));
        for bad in ["", "f16/", "/f16", "f16/f16/f16", "q8"] {
            assert!(bad.parse::<KvFormats>().is_err(), "{bad}");
        }
    }
}
