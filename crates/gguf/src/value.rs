//! Metadata values.
//!
//! Arrays are kept as the file has them: numbers as raw bytes, strings as offsets into the file, so that a
//! vocabulary of a quarter of a million tokens costs a few megabytes and no copies.

use crate::bytes::SharedBytes;

/// Type of a metadata value. Discriminants are those of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this id.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| *t as u32 == id)
    }

    /// The type's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of one value, for the types of fixed size.
    pub const fn fixed_bytes(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }
}

/// A metadata value.
#[derive(Clone, Debug)]
pub enum Value {
    /// Any unsigned integer.
    Unsigned(ValueType, u64),
    /// Any signed integer.
    Signed(ValueType, i64),
    /// `f32` or `f64`.
    Float(ValueType, f64),
    /// A boolean.
    Bool(bool),
    /// A string; the format says UTF-8, files do not always obey.
    String(SharedBytes),
    /// An array.
    Array(Array),
}

/// An array of metadata values of one type.
#[derive(Clone, Debug)]
pub enum Array {
    /// Values of fixed size, little endian.
    Fixed(ValueType, SharedBytes),
    /// Strings.
    Strings(Strings),
    /// Arrays of arrays.
    Nested(Vec<Array>),
}

/// An array of strings inside a file.
#[derive(Clone, Debug)]
pub struct Strings {
    bytes: SharedBytes,
    /// Start of each string's bytes; its length stands in the 8 bytes before.
    starts: Vec<u32>,
}

impl Strings {
    /// `bytes` are length-prefixed strings; `starts` point behind the prefixes, whose lengths were checked.
    pub(crate) fn new(bytes: SharedBytes, starts: Vec<u32>) -> Self {
        Self { bytes, starts }
    }

    /// The strings as a file stores them, each with its length before it.
    pub(crate) fn stored(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The bytes of string `index`.
    ///
    /// # Panics
    /// When `index` is out of range.
    pub fn get(&self, index: usize) -> &[u8] {
        let start = self.starts[index] as usize;
        let prefix = self.bytes[start - 8..start].try_into().expect("eight bytes");
        &self.bytes[start..start + u64::from_le_bytes(prefix) as usize]
    }

    /// String `index` as text.
    ///
    /// # Errors
    /// When its bytes are not UTF-8; vocabularies may hold such pieces.
    ///
    /// # Panics
    /// When `index` is out of range.
    pub fn get_str(&self, index: usize) -> Result<&str, std::str::Utf8Error> {
        std::str::from_utf8(self.get(index))
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i))
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Fixed(ty, bytes) => bytes.len() / ty.fixed_bytes().unwrap_or(1),
            Self::Strings(strings) => strings.len(),
            Self::Nested(arrays) => arrays.len(),
        }
    }

    /// Whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        match self {
            Self::Fixed(ty, _) => *ty,
            Self::Strings(_) => ValueType::String,
            Self::Nested(_) => ValueType::Array,
        }
    }

    /// The elements as counts: any integers that are not negative.
    pub fn to_u64s(&self) -> Option<Vec<u64>> {
        self.fixed()?.map(|v| v.as_u64()).collect()
    }

    /// The elements as `i64`: any integers that fit.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        self.fixed()?.map(|v| v.as_i64()).collect()
    }

    /// The elements as `f32`, of an array of `f32` or `f64`.
    pub fn to_f32s(&self) -> Option<Vec<f32>> {
        match self {
            Self::Fixed(ValueType::F32, bytes) => Some(
                bytes
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes(b.try_into().expect("four bytes")))
                    .collect(),
            ),
            Self::Fixed(ValueType::F64, _) => self.fixed()?.map(|v| v.as_f32()).collect(),
            _ => None,
        }
    }

    /// The elements as booleans.
    pub fn to_bools(&self) -> Option<Vec<bool>> {
        match self {
            Self::Fixed(ValueType::Bool, bytes) => Some(bytes.iter().map(|&b| b != 0).collect()),
            _ => None,
        }
    }

    /// The elements as strings.
    pub fn strings(&self) -> Option<&Strings> {
        match self {
            Self::Strings(strings) => Some(strings),
            _ => None,
        }
    }

    /// The elements of an array of fixed-size values.
    pub fn fixed(&self) -> Option<impl Iterator<Item = Value> + '_> {
        let Self::Fixed(ty, bytes) = self else { return None };
        let size = ty.fixed_bytes().unwrap_or(1);
        Some(bytes.chunks_exact(size).map(|b| Value::from_fixed(*ty, b)))
    }
}

impl Value {
    /// Decodes one value of a fixed-size type from its bytes.
    pub(crate) fn from_fixed(ty: ValueType, b: &[u8]) -> Self {
        let mut wide = [0u8; 8];
        wide[..b.len()].copy_from_slice(b);
        let bits = u64::from_le_bytes(wide);
        match ty {
            ValueType::I8 => Self::Signed(ty, i64::from(bits as i8)),
            ValueType::I16 => Self::Signed(ty, i64::from(bits as i16)),
            ValueType::I32 => Self::Signed(ty, i64::from(bits as i32)),
            ValueType::I64 => Self::Signed(ty, bits as i64),
            ValueType::F32 => Self::Float(ty, f64::from(f32::from_bits(bits as u32))),
            ValueType::F64 => Self::Float(ty, f64::from_bits(bits)),
            ValueType::Bool => Self::Bool(bits != 0),
            _ => Self::Unsigned(ty, bits),
        }
    }

    /// The type of the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::Unsigned(ty, _) | Self::Signed(ty, _) | Self::Float(ty, _) => *ty,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
        }
    }

    /// Any integer that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Unsigned(_, n) => Some(*n),
            Self::Signed(_, n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    /// Any integer that fits.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Unsigned(_, n) => i64::try_from(*n).ok(),
            Self::Signed(_, n) => Some(*n),
            _ => None,
        }
    }

    /// Any number.
    pub fn as_f32(&self) -> Option<f32> {
        match self {
            Self::Float(_, x) => Some(*x as f32),
            Self::Unsigned(_, n) => Some(*n as f32),
            Self::Signed(_, n) => Some(*n as f32),
            _ => None,
        }
    }

    /// A boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(b) = self { Some(*b) } else { None }
    }

    /// A string of valid UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(bytes) = self { std::str::from_utf8(bytes).ok() } else { None }
    }

    /// An array.
    pub fn as_array(&self) -> Option<&Array> {
        if let Self::Array(array) = self { Some(array) } else { None }
    }

    /// The value in a few words, for messages.
    pub fn describe(&self) -> String {
        match self {
            Self::Unsigned(ty, n) => format!("the {} {n}", ty.name()),
            Self::Signed(ty, n) => format!("the {} {n}", ty.name()),
            Self::Float(ty, x) => format!("the {} {x}", ty.name()),
            Self::Bool(b) => format!("the bool {b}"),
            Self::String(bytes) if std::str::from_utf8(bytes).is_err() => "a string that is not UTF-8".into(),
            Self::String(_) => "a string".into(),
            Self::Array(a) => format!("an array of {} {}", a.len(), a.element_type().name()),
        }
    }
}
