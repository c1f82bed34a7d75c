//! What a file says of one tensor.

use std::sync::Arc;

use crate::error::{GgufError, Result};
use crate::types::GgmlType;

/// Name, shape, type and place of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    name: Arc<str>,
    shape: Vec<u64>,
    type_id: u32,
    elements: u64,
    /// Offset in the data section of its file.
    pub(crate) offset: u64,
    /// Which file of a split model.
    pub(crate) part: usize,
}

impl TensorInfo {
    /// # Errors
    /// What is wrong with the shape.
    pub(crate) fn new(name: Arc<str>, shape: Vec<u64>, type_id: u32, offset: u64) -> Result<Self, String> {
        let elements = shape
            .iter()
            .try_fold(1u64, |product, &n| product.checked_mul(n))
            .filter(|&n| n <= 1 << 56)
            .ok_or_else(|| format!("tensor {name} has the impossible shape {shape:?}"))?;
        if elements == 0 {
            return Err(format!("tensor {name} has a zero in its shape {shape:?}"));
        }
        let info = Self { name, shape, type_id, elements, offset, part: 0 };
        let row = info.shape[0];
        match info.block() {
            Some((block_len, _)) if !row.is_multiple_of(block_len) => Err(format!(
                "tensor {} has rows of {row} elements, no multiple of {}'s block of {block_len}",
                info.name,
                info.type_name()
            )),
            _ => Ok(info),
        }
    }

    /// The tensor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Dimensions, fastest first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// The name, shared.
    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// The element type.
    ///
    /// # Errors
    /// When it is not one this engine reads.
    pub fn ty(&self) -> Result<GgmlType> {
        GgmlType::from_id(self.type_id).ok_or_else(|| GgufError::TensorType {
            tensor: self.name.to_string(),
            ty: self.type_name(),
            known: GgmlType::ALL.map(GgmlType::name).join(", "),
        })
    }

    /// The id of the element type in the file, also of types that cannot be read.
    pub fn type_id(&self) -> u32 {
        self.type_id
    }

    /// The element type's name, also of types that cannot be read.
    pub fn type_name(&self) -> String {
        match (GgmlType::from_id(self.type_id), unread_type(self.type_id)) {
            (Some(ty), _) => ty.name().to_owned(),
            (None, Some((name, _, _))) => name.to_owned(),
            (None, None) => format!("unknown type {}", self.type_id),
        }
    }

    /// Elements and bytes of a block; absent for types whose layout is not known.
    fn block(&self) -> Option<(u64, u64)> {
        match GgmlType::from_id(self.type_id) {
            Some(ty) => Some((ty.block_len() as u64, ty.block_bytes() as u64)),
            None => unread_type(self.type_id).map(|(_, len, bytes)| (len, bytes)),
        }
    }

    /// Bytes of the tensor's data; absent for types whose layout is not known.
    pub fn bytes(&self) -> Option<u64> {
        self.block().map(|(len, bytes)| self.elements / len * bytes)
    }
}

/// Types that GGUF files can hold and this engine does not read: name, elements of a block, bytes of a block.
fn unread_type(id: u32) -> Option<(&'static str, u64, u64)> {
    Some(match id {
        16 => ("IQ2_XXS", 256, 66),
        17 => ("IQ2_XS", 256, 74),
        18 => ("IQ3_XXS", 256, 98),
        19 => ("IQ1_S", 256, 50),
        21 => ("IQ3_S", 256, 110),
        22 => ("IQ2_S", 256, 82),
        24 => ("I8", 1, 1),
        25 => ("I16", 1, 2),
        26 => ("I32", 1, 4),
        27 => ("I64", 1, 8),
        28 => ("F64", 1, 8),
        29 => ("IQ1_M", 256, 56),
        34 => ("TQ1_0", 256, 54),
        35 => ("TQ2_0", 256, 66),
        40 => ("NVFP4", 64, 36),
        41 => ("Q1_0", 128, 18),
        _ => return None,
    })
}
