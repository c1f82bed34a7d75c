//! Builds GGUF bytes field by field, right or wrong, without the crate's own writer.

use lapidary_gguf::{Gguf, GgufError};

pub const U8: u32 = 0;
pub const I16: u32 = 3;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;

pub fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

pub fn array(ty: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&ty.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

/// A file in the making.
#[derive(Clone)]
pub struct Raw {
    pub version: u32,
    pub n_pairs: Option<u64>,
    pub n_tensors: Option<u64>,
    pairs: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    pub alignment: usize,
    data: Vec<u8>,
}

impl Raw {
    pub fn new() -> Self {
        let (pairs, tensors, data) = (Vec::new(), Vec::new(), Vec::new());
        Self { version: 3, n_pairs: None, n_tensors: None, pairs, tensors, alignment: 32, data }
    }

    pub fn pair(mut self, key: &str, ty: u32, value: impl AsRef<[u8]>) -> Self {
        self.pairs.push([&string(key)[..], &ty.to_le_bytes(), value.as_ref()].concat());
        self
    }

    pub fn tensor(mut self, name: &str, shape: &[u64], ty: u32, offset: u64) -> Self {
        let mut info = string(name);
        info.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|n| info.extend(n.to_le_bytes()));
        info.extend(ty.to_le_bytes());
        info.extend(offset.to_le_bytes());
        self.tensors.push(info);
        self
    }

    pub fn data(mut self, data: &[u8]) -> Self {
        self.data.extend(data);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_pairs.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        out.extend(self.pairs.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }

    pub fn open(&self) -> Result<Gguf, GgufError> {
        Gguf::from_bytes(self.bytes().into(), "model.gguf")
    }

    /// The message of the error that opening ends with.
    #[track_caller]
    pub fn error(&self) -> String {
        self.open().expect_err("the file is wrong").to_string()
    }
}
