//! Building metadata values for writing.

use crate::bytes::SharedBytes;
use crate::value::{Array, Strings, Value, ValueType};

macro_rules! numbers {
    ($($number:ty, $ty:ident, $variant:ident);* $(;)?) => {$(
        impl From<$number> for Value {
            fn from(n: $number) -> Self {
                Self::$variant(ValueType::$ty, n.into())
            }
        }

        impl From<&[$number]> for Array {
            fn from(numbers: &[$number]) -> Self {
                let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
                Self::Fixed(ValueType::$ty, bytes.into())
            }
        }

        impl From<&[$number]> for Value {
            fn from(numbers: &[$number]) -> Self {
                Self::Array(numbers.into())
            }
        }
    )*};
}

numbers! {
    u8, U8, Unsigned;
    u16, U16, Unsigned;
    u32, U32, Unsigned;
    u64, U64, Unsigned;
    i8, I8, Signed;
    i16, I16, Signed;
    i32, I32, Signed;
    i64, I64, Signed;
    f32, F32, Float;
    f64, F64, Float;
}

impl From<bool> for Value {
    fn from(b: bool) -> Self {
        Self::Bool(b)
    }
}

impl From<&[bool]> for Array {
    fn from(bools: &[bool]) -> Self {
        let bytes: Vec<u8> = bools.iter().map(|&b| u8::from(b)).collect();
        Self::Fixed(ValueType::Bool, bytes.into())
    }
}

impl From<&[bool]> for Value {
    fn from(bools: &[bool]) -> Self {
        Self::Array(bools.into())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.as_bytes().to_vec().into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text.into_bytes().into())
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Self::Array(array)
    }
}

impl From<Strings> for Value {
    fn from(strings: Strings) -> Self {
        Self::Array(Array::Strings(strings))
    }
}

/// # Panics
/// When the strings take 4 GiB or more.
impl<S: AsRef<[u8]>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for string in strings {
            let string = string.as_ref();
            bytes.extend((string.len() as u64).to_le_bytes());
            starts.push(u32::try_from(bytes.len()).expect("strings of less than 4 GiB"));
            bytes.extend(string);
        }
        Self::new(SharedBytes::from(bytes), starts)
    }
}
