//! Kernel arguments that are passed by value; each has a twin in the kernels' sources.

use bytemuck::{Pod, Zeroable};

/// An address on the device.
pub(crate) type Address = u64;

/// Most matrices of one product.
pub(crate) const MAX_MATRICES: usize = 4;

/// `Product` of `matrix.cu`.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Product {
    pub weights: [Address; MAX_MATRICES],
    pub x: Address,
    pub out: Address,
    pub experts: Address,
    pub tile_experts: Address,
    pub tile_choices: Address,
    pub n_tiles: Address,
    pub stack_bytes: [u64; MAX_MATRICES],
    pub row_bytes: u64,
    pub rows: [i32; MAX_MATRICES],
    pub first_block: [i32; MAX_MATRICES],
    pub column: [i32; MAX_MATRICES],
    pub n_matrices: i32,
    pub cols: i32,
    pub n_rows: i32,
    pub out_stride: i32,
    pub divisor: i32,
    /// Makes the size a multiple of eight bytes.
    pub padding: u32,
}

/// Rows that [`RowIds`] holds.
pub(crate) const GATHERED: usize = 256;

/// `RowIds` of `rows.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RowIds {
    pub ids: [u32; GATHERED],
}

/// `Layout` of `turbo.cuh`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Layout {
    pub head_bytes: u64,
    pub block_len: i32,
    pub kv_heads: i32,
    pub head_dim: i32,
    pub key_bytes: i32,
    pub value_bytes: i32,
    pub key_scales: i32,
    pub value_scales: i32,
    pub block_shift: i32,
    pub part_dim: i32,
    pub part_scale: f32,
}

/// `Attention` of `cache.cu`.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct AttentionJob {
    pub qkv: Address,
    pub blocks: Address,
    pub positions: Address,
    pub views: Address,
    pub tables: Address,
    pub tails: Address,
    pub constants: Address,
    pub partial: Address,
    pub out: Address,
    pub layout: Layout,
    pub scale: f32,
    pub heads: i32,
    pub window: i32,
    pub layer: i32,
    pub first_row: i32,
    pub max_spans: i32,
}
