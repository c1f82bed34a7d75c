//! How much memory there is, and how much of it a cache of keys and values may take.

use std::str::FromStr;

use anyhow::{Result, bail};
use lapidary_backend::KvFormat;
use lapidary_engine::Config;
use lapidary_engine::kv::KvSize;

use crate::output::{bytes, count};

/// What the operating system and everything else are left beside weights and cache.
const MARGIN: u64 = 512 << 20;
/// What a cache may take at least, however little memory is free.
const LEAST: u64 = 256 << 20;

/// Total and available memory in bytes, from the kernel's own account; `None` where the system does not tell.
pub fn of_machine() -> Option<(u64, u64)> {
    let account = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = account.lines().find(|l| l.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    Some((field("MemTotal:")?, field("MemAvailable:")?))
}

/// A limit on the cache's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvMemory {
    /// What is free when the model is loaded.
    Auto,
    /// So many bytes.
    Bytes(u64),
}

impl KvMemory {
    /// Bytes that the cache may take beside `weights` bytes of weights; `None` where the system does not tell what is free.
    pub fn budget(self, weights: u64) -> Option<usize> {
        match self {
            Self::Bytes(n) => Some(usize::try_from(n).unwrap_or(usize::MAX)),
            Self::Auto => {
                let (_, available) = of_machine()?;
                // Mapped weights count as available until they are read.
                Some(self.budget_of(available.saturating_sub(weights)))
            }
        }
    }

    /// Bytes that the cache may take of `free` bytes.
    pub fn budget_of(self, free: u64) -> usize {
        match self {
            Self::Bytes(n) => usize::try_from(n).unwrap_or(usize::MAX),
            Self::Auto => free.saturating_sub(MARGIN).max(LEAST) as usize,
        }
    }
}

impl FromStr for KvMemory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" { Ok(Self::Auto) } else { size(text).map(Self::Bytes) }
    }
}

/// A number of bytes such as `512M`, `2G`, `1.5GiB` or `1000000`; units are powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size; write 512M, 2G or a number of bytes");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes < 2f64.powi(63) { Ok(bytes as u64) } else { Err(wrong()) }
}

/// Checks that a sequence of `context` positions fits `budget`.
///
/// # Errors
/// Words that say what is needed, what there is, and what would fit.
pub fn check(
    config: &Config,
    (k, v): (KvFormat, KvFormat),
    context: usize,
    batch: usize,
    budget: usize,
) -> Result<()> {
    let needed = KvSize::new(config, k, v).of_sequence(context, batch);
    if needed <= budget {
        return Ok(());
    }
    let formats = if k == v { k.to_string() } else { format!("{k} keys and {v} values") };
    let fits = |format: KvFormat| {
        let longest = KvSize::new(config, format, format).longest(budget, context, batch);
        (longest > 0).then(|| format!("{} in {format}", count(longest as u64)))
    };
    let fits: Vec<String> = KvFormat::ALL[1..].iter().filter_map(|&f| fits(f)).collect();
    let fits = if fits.is_empty() { "no context at all".to_owned() } else { fits.join(", ") };
    bail!(
        "a context of {} positions takes {} of keys and values in {formats}, and {} are free for them, \
         which hold {fits}; choose a smaller context (-c), a compressed format (--kv tq8, --kv tq4), or allow more (--kv-memory)",
        count(context as u64),
        bytes(needed as u64),
        bytes(budget as u64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        for (text, expected) in [
            ("0", 0),
            ("1000", 1000),
            ("512M", 512 << 20),
            ("2G", 2 << 30),
            ("1.5GiB", 3 << 29),
            ("7kb", 7 << 10),
        ] {
            assert_eq!(size(text), Ok(expected), "{text}");
        }
        for text in ["", "G", "-1", "1X", "1e30", "99999999999T", "nan", "0x10"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert_eq!("auto".parse(), Ok(KvMemory::Auto));
    }
}
