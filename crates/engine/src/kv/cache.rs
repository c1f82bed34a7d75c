//! Sequences over pools: preparing a batch's addresses, committing, truncating, forking.

use std::collections::HashMap;
use std::sync::Arc;

use lapidary_backend::{Backend, GroupRows, KvFormat, KvPoolSpec, RowBatch, RowView};

use super::BLOCK_LEN;
use super::allocator::Allocator;
use super::paths::Paths;
use super::sequence::{BlockTable, Sequence};
use crate::batch::{Input, Row};
use crate::error::{EngineError, Result};
use crate::model::{CacheGroup, Config};

/// Name of a sequence in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(u64);

/// How a cache stores its vectors, and how long a sequence may grow.
#[derive(Clone, Copy, Debug)]
pub struct KvCacheConfig {
    /// Format of keys.
    pub k_format: KvFormat,
    /// Format of values.
    pub v_format: KvFormat,
    /// Positions a sequence may have.
    pub context: usize,
}

/// Keys and values of any number of sequences of one model.
pub struct KvCache<B: Backend> {
    backend: Arc<B>,
    context: usize,
    groups: Vec<Group<B>>,
    sequences: HashMap<SequenceId, Sequence>,
    next_id: u64,
}

struct Group<B: Backend> {
    spec: CacheGroup,
    pool: B::KvPool,
    block_bytes: usize,
    allocator: Allocator,
}

impl<B: Backend> KvCache<B> {
    /// An empty cache for `model_config`; memory is taken as sequences grow.
    pub fn new(backend: Arc<B>, model_config: &Config, config: KvCacheConfig) -> Result<Self> {
        let group = |spec: &CacheGroup| -> Result<Group<B>> {
            let pool_spec = KvPoolSpec {
                layers: spec.layers,
                kv_heads: spec.kv_heads,
                head_dim: spec.head_dim,
                k_format: config.k_format,
                v_format: config.v_format,
                block_len: BLOCK_LEN,
            };
            let pool = backend.kv_pool(pool_spec)?;
            Ok(Group {
                spec: *spec,
                pool,
                block_bytes: pool_spec.block_bytes(),
                allocator: Allocator::default(),
            })
        };
        let groups = model_config.cache_groups.iter().map(group).collect::<Result<_>>()?;
        Ok(Self { backend, context: config.context, groups, sequences: HashMap::new(), next_id: 0 })
    }

    /// Positions a sequence may have.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Starts an empty sequence.
    pub fn create(&mut self) -> SequenceId {
        let tables = vec![BlockTable::default(); self.groups.len()];
        self.insert(Sequence { length: 0, tables })
    }

    /// Starts a sequence that shares all positions of `id`.
    ///
    /// # Panics
    /// When `id` was released.
    pub fn fork(&mut self, id: SequenceId) -> SequenceId {
        let source = self.sequences.get_mut(&id).expect("a sequence of this cache");
        let length = source.length;
        let fork = |(table, group): (&mut BlockTable, &mut Group<B>)| {
            // Rows that were never committed are not shared: both sequences would write there.
            table.truncate(length, &mut group.allocator);
            table.fork(&mut group.allocator)
        };
        let tables = source.tables.iter_mut().zip(&mut self.groups).map(fork).collect();
        self.insert(Sequence { length, tables })
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.sequences.insert(id, sequence);
        id
    }

    /// Ends a sequence and frees what no other one uses. Does nothing when it ended before.
    pub fn release(&mut self, id: SequenceId) {
        let Some(mut sequence) = self.sequences.remove(&id) else { return };
        for (table, group) in sequence.tables.iter_mut().zip(&mut self.groups) {
            table.blocks.drain(..).for_each(|block| group.allocator.release(block));
        }
    }

    /// Committed positions of a sequence.
    ///
    /// # Panics
    /// When `id` was released.
    pub fn length(&self, id: SequenceId) -> usize {
        self.sequences[&id].length
    }

    /// Cuts a sequence back to `length` positions.
    ///
    /// # Errors
    /// [`WindowReleased`](EngineError::WindowReleased) when the next row would see positions of a sliding layer
    /// that are gone. The sequence is then unchanged.
    pub fn truncate(&mut self, id: SequenceId, length: usize) -> Result<()> {
        let sequence = self.sequences.get_mut(&id).expect("a sequence of this cache");
        let length = length.min(sequence.length);
        for (table, group) in sequence.tables.iter().zip(&self.groups) {
            let kept = table.first * BLOCK_LEN;
            if first_visible(group.spec.window, length) < kept {
                return Err(EngineError::WindowReleased { length, kept });
            }
        }
        sequence.length = length;
        for (table, group) in sequence.tables.iter_mut().zip(&mut self.groups) {
            table.truncate(length, &mut group.allocator);
        }
        Ok(())
    }

    /// Bytes of the blocks in use.
    pub fn bytes_in_use(&self) -> usize {
        self.groups.iter().map(|g| g.allocator.in_use() * g.block_bytes).sum()
    }

    /// Makes room for the rows and lays out their positions and addresses.
    ///
    /// Row `i` of a sequence of committed length `L` takes the slot `L + i`, in the order of the batch; on a
    /// chain that slot is its position.
    pub(crate) fn prepare(&mut self, rows: &[Row]) -> Result<PreparedRows> {
        let paths = Paths::new(rows, |id| self.sequences.get(&id).map(|s| s.length));
        let needed = paths.positions.iter().max().map_or(0, |&last| last + 1);
        if needed > self.context {
            return Err(EngineError::ContextFull { needed, context: self.context });
        }
        self.make_room(&paths)?;
        let mut batch = RowBatch {
            tokens: rows
                .iter()
                .map(|r| match r.input {
                    Input::Token(id) => id,
                    Input::Embedding { .. } => 0,
                })
                .collect(),
            positions: paths.positions.iter().map(|&p| p as u32).collect(),
            groups: Vec::with_capacity(self.groups.len()),
        };
        for g in 0..self.groups.len() {
            batch.groups.push(self.addresses(g, rows, &paths));
        }
        let mut chains = paths.ends.clone();
        for (r, row) in rows.iter().enumerate() {
            if !paths.is_chain(r) {
                chains.remove(&row.sequence);
            }
        }
        Ok(PreparedRows { batch, chains })
    }

    /// Room for every slot the rows take, in blocks that no other sequence shares.
    fn make_room(&mut self, paths: &Paths) -> Result<()> {
        for (g, group) in self.groups.iter_mut().enumerate() {
            // The pool grows first: when it cannot, no table has changed.
            let missing = paths.ends.iter().map(|(id, &end)| {
                let sequence = &self.sequences[id];
                sequence.tables[g].missing(sequence.length, end, &group.allocator)
            });
            let n_blocks = group.allocator.capacity_for(missing.sum());
            self.backend.kv_reserve(&mut group.pool, n_blocks)?;
            let mut copies = Vec::new();
            for (id, &end) in &paths.ends {
                let sequence = self.sequences.get_mut(id).expect("a sequence of this cache");
                let begin = sequence.length;
                let table = &mut sequence.tables[g];
                table.grow(end, &mut group.allocator);
                // Only the block that holds the first new slot can be shared: later ones are new.
                copies.extend(table.make_unique(begin, &mut group.allocator));
            }
            let block = BLOCK_LEN as u32;
            let cells: Vec<(u32, u32)> = copies
                .iter()
                .flat_map(|&(from, to)| (0..block).map(move |i| (from * block + i, to * block + i)))
                .collect();
            self.backend.kv_copy(&mut group.pool, &cells)?;
        }
        Ok(())
    }

    fn addresses(&self, g: usize, rows: &[Row], paths: &Paths) -> GroupRows {
        let mut group = GroupRows::default();
        let mut starts: HashMap<SequenceId, u32> = HashMap::new();
        for (r, row) in rows.iter().enumerate() {
            let sequence = &self.sequences[&row.sequence];
            let table = &sequence.tables[g];
            let start = *starts.entry(row.sequence).or_insert_with(|| {
                group.blocks.extend_from_slice(&table.blocks);
                (group.blocks.len() - table.blocks.len()) as u32
            });
            let (position, slot) = (paths.positions[r], paths.slots[r]);
            group.store.push(table.cell(slot));
            let tail = group.tails.len() as u32;
            let shared = if paths.is_chain(r) {
                position + 1
            } else {
                group.tails.extend(paths.path(r).into_iter().map(|slot| table.cell(slot)));
                sequence.length
            };
            group.views.push(RowView {
                table: start,
                first_block: table.first as u32,
                shared: shared as u32,
                tail,
            });
        }
        group
    }

    /// Makes the rows of a forward pass part of their sequences and releases what fell out of the windows.
    pub(crate) fn commit(&mut self, ends: &HashMap<SequenceId, usize>) {
        for (id, &end) in ends {
            let Some(sequence) = self.sequences.get_mut(id) else { continue };
            sequence.length = end;
            for (table, group) in sequence.tables.iter_mut().zip(&mut self.groups) {
                table.release_before(first_visible(group.spec.window, end), &mut group.allocator);
            }
        }
    }

    /// Keeps the path `rows` of a draft tree that the last forward pass ran for `id`, and drops its other rows.
    /// `rows` count the sequence's rows in that batch from 0 and ascend from the root.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When the rows do not ascend or were not part of the pass.
    pub fn accept(&mut self, id: SequenceId, rows: &[usize]) -> Result<()> {
        assert!(rows.windows(2).all(|w| w[0] < w[1]), "a path ascends");
        let sequence = self.sequences.get(&id).expect("a sequence of this cache");
        let begin = sequence.length;
        for (table, group) in sequence.tables.iter().zip(&mut self.groups) {
            // Row i of the path never lies before slot i, so that copying in order overwrites nothing needed.
            let moves: Vec<(u32, u32)> = rows
                .iter()
                .enumerate()
                .filter(|&(i, &row)| i != row)
                .map(|(i, &row)| (table.cell(begin + row), table.cell(begin + i)))
                .collect();
            self.backend.kv_copy(&mut group.pool, &moves)?;
        }
        let length = begin + rows.len();
        for (table, group) in self
            .sequences
            .get_mut(&id)
            .expect("a sequence of this cache")
            .tables
            .iter_mut()
            .zip(&mut self.groups)
        {
            table.truncate(length, &mut group.allocator);
        }
        self.commit(&HashMap::from([(id, length)]));
        Ok(())
    }

    pub(crate) fn pool(&self, group: usize) -> &B::KvPool {
        &self.groups[group].pool
    }

    pub(crate) fn pool_mut(&mut self, group: usize) -> &mut B::KvPool {
        &mut self.groups[group].pool
    }
}

/// First position that a row at `position` sees.
fn first_visible(window: Option<usize>, position: usize) -> usize {
    window.map_or(0, |w| (position + 1).saturating_sub(w))
}

/// A batch ready for a backend, and the length that each sequence without branches has once it is committed.
pub(crate) struct PreparedRows {
    pub batch: RowBatch,
    pub chains: HashMap<SequenceId, usize>,
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
