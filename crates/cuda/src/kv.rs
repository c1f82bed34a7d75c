//! Key/value blocks in the memory of a device.
//!
//! A block holds `[layer][kv_head]` of: the codes of its keys, those of its values, the scales of the keys, those of the
//! values. The codes of a vector take a multiple of 16 bytes, and at least as many as eight elements need, so that it can
//! be read in wide words. Blocks are allocations of their own, made when something first goes into them.

use std::sync::Arc;

use lapidary_backend::kv::{rotation, turbo};
use lapidary_backend::{BackendError, KvFormat, KvPoolSpec, Result};

use crate::arguments::{Address, Layout};
use crate::device::Device;
use crate::memory::{Memory, Scratch};

/// Longest attention head.
pub(crate) const MAX_HEAD_DIM: usize = 512;

/// Blocks of keys and values of one layer group.
pub struct CudaKvPool {
    spec: KvPoolSpec,
    layout: Layout,
    blocks: Vec<Option<Memory<u8>>>,
    /// Addresses of the blocks, for the kernels.
    addresses: Scratch<u64>,
    stale: bool,
}

fn stored_bytes(format: KvFormat, head_dim: usize) -> usize {
    let dim = if format.turbo_bits().is_some() { head_dim } else { head_dim.next_multiple_of(8) };
    format.code_bytes(dim).next_multiple_of(16)
}

impl CudaKvPool {
    /// A pool without blocks.
    pub(crate) fn new(device: &Arc<Device>, spec: KvPoolSpec) -> Result<Self> {
        spec.check(&device.name())?;
        let dim = spec.head_dim;
        if dim == 0 || dim % 2 == 1 || dim > MAX_HEAD_DIM || spec.block_len == 0 {
            return Err(device.unsupported(format!(
                "attention heads of {dim} elements in blocks of {} positions; heads have 2 to {MAX_HEAD_DIM}, an even number",
                spec.block_len
            )));
        }
        let (key_bytes, value_bytes) = (stored_bytes(spec.k_format, dim), stored_bytes(spec.v_format, dim));
        let (key_scales, value_scales) = (spec.k_format.scale_count(dim), spec.v_format.scale_count(dim));
        let head_bytes = spec.block_len * (key_bytes + value_bytes + 4 * (key_scales + value_scales));
        let layout = Layout {
            head_bytes: head_bytes.next_multiple_of(16) as u64,
            block_len: spec.block_len as i32,
            kv_heads: spec.kv_heads as i32,
            head_dim: dim as i32,
            key_bytes: key_bytes as i32,
            value_bytes: value_bytes as i32,
            key_scales: key_scales as i32,
            value_scales: value_scales as i32,
            block_shift: turbo::block_dim(dim).trailing_zeros() as i32,
            part_dim: rotation::part_dim(dim) as i32,
            part_scale: rotation::part_scale(dim),
        };
        Ok(Self { spec, layout, blocks: Vec::new(), addresses: Scratch::default(), stale: true })
    }

    /// Shape and formats.
    pub fn spec(&self) -> &KvPoolSpec {
        &self.spec
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Bytes of a block as it is stored.
    pub(crate) fn block_bytes(&self) -> usize {
        self.layout.head_bytes as usize * self.spec.layers * self.spec.kv_heads
    }

    /// Makes room for the names of `n_blocks` blocks.
    pub(crate) fn reserve(&mut self, n_blocks: usize) {
        if n_blocks > self.blocks.len() {
            self.blocks.resize_with(n_blocks, || None);
            self.stale = true;
        }
    }

    /// Gives the memory of blocks back.
    pub(crate) fn free(&mut self, blocks: &[u32]) {
        for &block in blocks {
            self.stale |= self.blocks[block as usize].take().is_some();
        }
    }

    /// Makes sure that the blocks of `cells` have memory.
    pub(crate) fn materialise(
        &mut self,
        device: &Arc<Device>,
        cells: impl Iterator<Item = u32>,
    ) -> Result<()> {
        let block_len = self.spec.block_len;
        for cell in cells {
            self.block(device, cell as usize / block_len)?;
        }
        Ok(())
    }

    fn block(&mut self, device: &Arc<Device>, block: usize) -> Result<&mut Memory<u8>> {
        let bytes = self.block_bytes();
        let slot = &mut self.blocks[block];
        if slot.is_none() {
            *slot = Some(Memory::zeroed(device, bytes, "a block of keys and values")?);
            self.stale = true;
        }
        Ok(slot.as_mut().expect("made above"))
    }

    /// Where the addresses of the blocks are, up to date.
    pub(crate) fn update(&mut self, device: &Arc<Device>) -> Result<Address> {
        if self.stale {
            let addresses: Vec<u64> =
                self.blocks.iter().map(|b| b.as_ref().map_or(0, |b| b.address(device))).collect();
            self.addresses
                .reserve(device, addresses.len(), "the table of blocks")?
                .write(device, &addresses, 0)?;
            self.stale = false;
        }
        Ok(self.addresses(device))
    }

    /// Where the addresses of the blocks are, as of the last [`update`](Self::update).
    pub(crate) fn addresses(&self, device: &Arc<Device>) -> Address {
        self.addresses.get().map_or(0, |m| m.address(device))
    }

    /// Appends the bytes of a block; zeros where it has no memory.
    pub(crate) fn export(&self, device: &Arc<Device>, block: u32, out: &mut Vec<u8>) -> Result<()> {
        let begin = out.len();
        out.resize(begin + self.block_bytes(), 0);
        match &self.blocks[block as usize] {
            Some(memory) => memory.read(device, 0, &mut out[begin..]),
            None => Ok(()),
        }
    }

    /// Fills a block.
    pub(crate) fn import(&mut self, device: &Arc<Device>, block: u32, bytes: &[u8]) -> Result<()> {
        let (expected, found) = (self.block_bytes(), bytes.len());
        if expected != found {
            return Err(BackendError::BlockSize { expected, found });
        }
        self.block(device, block as usize)?.write(device, bytes, 0)?;
        self.update(device).map(drop)
    }
}
