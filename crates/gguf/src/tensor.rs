//! What a file says of one tensor.

use crate::error::{GgufError, Result};
use crate::types::GgmlType;

/// Name, shape, type and place of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    name: String,
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
    pub(crate) fn new(name: String, shape: Vec<u64>, type_id: u32, offset: u64) -> Result<Self, String> {
        let elements = shape
            .iter()
            .try_fold(1u64, |product, &n| product.checked_mul(n))
            .filter(|&n| n <= 1 << 56)
            .ok_or_else(|| format!("tensor {name} has the impossible shape {shape:?}"))?;
        if elements == 0 {
            return Err(format!("tensor {name} has a zero in its shape {shape:?}"));
        }
        let info = Self { name, shape, type_id, elements, offset, part: 0 };
        if let Ok(ty) = info.ty()
            && !info.shape[0].is_multiple_of(ty.block_len() as u64)
        {
            let (row, block) = (info.shape[0], ty.block_len());
            return Err(format!(
                "tensor {} has rows of {row} elements, no multiple of {ty}'s block of {block}",
                info.name
            ));
        }
        Ok(info)
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

    /// The element type.
    ///
    /// # Errors
    /// When it is not one this engine reads.
    pub fn ty(&self) -> Result<GgmlType> {
        GgmlType::from_id(self.type_id).ok_or_else(|| GgufError::TensorType {
            tensor: self.name.clone(),
            ty: self.type_name(),
            known: GgmlType::ALL.map(GgmlType::name).join(", "),
        })
    }

    /// The element type's name, also of types that cannot be read.
    pub fn type_name(&self) -> String {
        GgmlType::from_id(self.type_id).map(|t| t.name().to_owned()).unwrap_or_else(
            || match unread_type_name(self.type_id) {
                Some(name) => name.to_owned(),
                None => format!("unknown type {}", self.type_id),
            },
        )
    }

    /// Bytes of the tensor's data; absent for types that cannot be read.
    pub fn bytes(&self) -> Option<u64> {
        let ty = GgmlType::from_id(self.type_id)?;
        Some(self.elements / ty.block_len() as u64 * ty.block_bytes() as u64)
    }
}

/// Names of the types that GGUF knows and this engine does not read.
fn unread_type_name(id: u32) -> Option<&'static str> {
    Some(match id {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        40 => "NVFP4",
        _ => return None,
    })
}
