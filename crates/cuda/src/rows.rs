//! The rows of a batch on the device.

use std::sync::Arc;

use lapidary_backend::{Result, RowBatch};

use crate::arguments::Address;
use crate::device::Device;
use crate::memory::Scratch;

/// The uploaded rows of a batch: all its numbers in one buffer.
#[derive(Default)]
pub struct CudaRows {
    memory: Scratch<u32>,
    /// The batch itself, for what is decided on the host.
    batch: RowBatch,
    groups: Vec<GroupPlaces>,
}

/// Where the parts of a group begin in the buffer.
#[derive(Clone, Copy, Default)]
struct GroupPlaces {
    store: usize,
    views: usize,
    blocks: usize,
    tails: usize,
}

/// Addresses of a group's parts.
pub(crate) struct GroupAddresses {
    pub store: Address,
    pub views: Address,
    pub blocks: Address,
    pub tails: Address,
}

impl CudaRows {
    /// Uploads a batch.
    pub(crate) fn upload(&mut self, device: &Arc<Device>, batch: &RowBatch) -> Result<()> {
        self.batch.clone_from(batch);
        let mut words: Vec<u32> = batch.tokens.iter().chain(&batch.positions).copied().collect();
        self.groups.clear();
        for group in &batch.groups {
            let mut places = GroupPlaces { store: words.len(), ..GroupPlaces::default() };
            words.extend(&group.store);
            places.views = words.len();
            words.extend(group.views.iter().flat_map(|v| [v.table, v.first_block, v.shared, v.tail]));
            places.blocks = words.len();
            words.extend(&group.blocks);
            places.tails = words.len();
            words.extend(&group.tails);
            self.groups.push(places);
        }
        self.memory.reserve(device, words.len(), "the rows of a batch")?.write(device, &words, 0)
    }

    /// The batch.
    pub(crate) fn batch(&self) -> &RowBatch {
        &self.batch
    }

    fn address(&self, device: &Arc<Device>, word: usize) -> Address {
        self.memory.get().map_or(0, |m| m.address_of(device, word))
    }

    pub(crate) fn tokens(&self, device: &Arc<Device>) -> Address {
        self.address(device, 0)
    }

    pub(crate) fn positions(&self, device: &Arc<Device>) -> Address {
        self.address(device, self.batch.tokens.len())
    }

    pub(crate) fn group(&self, device: &Arc<Device>, group: usize) -> GroupAddresses {
        let places = self.groups[group];
        let address = |word| self.address(device, word);
        GroupAddresses {
            store: address(places.store),
            views: address(places.views),
            blocks: address(places.blocks),
            tails: address(places.tails),
        }
    }
}
