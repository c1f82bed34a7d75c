//! Types of files: what a user asks for, and what the metadata states.

use std::fmt;

use lapidary_gguf::GgmlType;

/// A mixture of tensor types, by llama.cpp's names. Discriminants are the numbers of `general.file_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, non_camel_case_types)]
pub enum FileType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q8_0 = 7,
    Q5_0 = 8,
    Q5_1 = 9,
    Q2_K = 10,
    Q3_K_S = 11,
    Q3_K_M = 12,
    Q3_K_L = 13,
    Q4_K_S = 14,
    Q4_K_M = 15,
    Q5_K_S = 16,
    Q5_K_M = 17,
    Q6_K = 18,
    IQ4_NL = 25,
    IQ4_XS = 30,
    BF16 = 32,
}

impl FileType {
    /// All types, from large to small.
    pub const ALL: [Self; 19] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q6_K,
        Self::Q5_K_M,
        Self::Q5_K_S,
        Self::Q5_1,
        Self::Q5_0,
        Self::Q4_K_M,
        Self::Q4_K_S,
        Self::Q4_1,
        Self::Q4_0,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::Q3_K_L,
        Self::Q3_K_M,
        Self::Q3_K_S,
        Self::Q2_K,
    ];

    /// The type with this name in any case. "q3_k", "q4_k" and "q5_k" mean the medium mixtures.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "q3_k" => Some(Self::Q3_K_M),
            "q4_k" => Some(Self::Q4_K_M),
            "q5_k" => Some(Self::Q5_K_M),
            lower => Self::ALL.into_iter().find(|t| t.name() == lower),
        }
    }

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
            Self::Q2_K => "q2_k",
            Self::Q3_K_S => "q3_k_s",
            Self::Q3_K_M => "q3_k_m",
            Self::Q3_K_L => "q3_k_l",
            Self::Q4_K_S => "q4_k_s",
            Self::Q4_K_M => "q4_k_m",
            Self::Q5_K_S => "q5_k_s",
            Self::Q5_K_M => "q5_k_m",
            Self::Q6_K => "q6_k",
            Self::IQ4_NL => "iq4_nl",
            Self::IQ4_XS => "iq4_xs",
        }
    }

    /// The type of most tensors.
    pub const fn base(self) -> GgmlType {
        match self {
            Self::F32 => GgmlType::F32,
            Self::F16 => GgmlType::F16,
            Self::BF16 => GgmlType::BF16,
            Self::Q4_0 => GgmlType::Q4_0,
            Self::Q4_1 => GgmlType::Q4_1,
            Self::Q5_0 => GgmlType::Q5_0,
            Self::Q5_1 => GgmlType::Q5_1,
            Self::Q8_0 => GgmlType::Q8_0,
            Self::Q2_K => GgmlType::Q2_K,
            Self::Q3_K_S | Self::Q3_K_M | Self::Q3_K_L => GgmlType::Q3_K,
            Self::Q4_K_S | Self::Q4_K_M => GgmlType::Q4_K,
            Self::Q5_K_S | Self::Q5_K_M => GgmlType::Q5_K,
            Self::Q6_K => GgmlType::Q6_K,
            Self::IQ4_NL => GgmlType::IQ4_NL,
            Self::IQ4_XS => GgmlType::IQ4_XS,
        }
    }

    /// Whether all tensors are stored as floating-point numbers.
    pub const fn is_float(self) -> bool {
        self.base().is_float()
    }

    /// The number in `general.file_type`.
    pub const fn id(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
