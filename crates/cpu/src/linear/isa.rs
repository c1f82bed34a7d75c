//! Instruction sets the kernels are written for.

use std::fmt;

/// An instruction set that this machine was seen to have.
///
/// The level inside is private: a value can only be made by the functions that ask the processor, so holding one
/// is the proof that its kernels may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// Plain Rust, on every machine: the twin that the SIMD kernels are compared with.
    pub const PORTABLE: Self = Self(Level::Portable);

    /// The fastest instruction set of this machine.
    pub fn detect() -> Self {
        *Self::available().last().expect("the portable kernels always exist")
    }

    /// Every instruction set of this machine, slowest first.
    pub fn available() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
        let mut found = vec![Self::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = std::is_x86_feature_detected!("avx2")
                && std::is_x86_feature_detected!("fma")
                && std::is_x86_feature_detected!("f16c");
            if avx2 {
                found.push(Self(Level::Avx2));
            }
            let avx512 = std::is_x86_feature_detected!("avx512f")
                && std::is_x86_feature_detected!("avx512bw")
                && std::is_x86_feature_detected!("avx512vl")
                && std::is_x86_feature_detected!("avx512dq")
                && std::is_x86_feature_detected!("avx512vnni");
            if avx2 && avx512 {
                found.push(Self(Level::Avx512));
            }
        }
        found
    }

    /// A short name for logs and benchmarks.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512-vnni",
        }
    }

    pub(crate) const fn level(self) -> Level {
        self.0
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
