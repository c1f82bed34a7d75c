//! Sequences over pools: preparing a batch's addresses, committing, truncating, forking.

use std::collections::HashMap;
use std::sync::Arc;

use lapidary_backend::{Backend, GroupRows, KvFormat, RowBatch, RowView};

use super::BLOCK_LEN;
use super::allocator::Allocator;
use super::paths::Paths;
use super::prefix::{PrefixIndex, Salt};
use super::sequence::{BlockTable, Sequence};
use super::store::{Chain, KvStore};
use crate::batch::{Input, Parent, Row};
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
    /// Bytes that all blocks together may take; absent: as many as there are.
    pub budget: Option<usize>,
}

/// Keys and values of any number of sequences of one model.
pub struct KvCache<B: Backend> {
    backend: Arc<B>,
    config: KvCacheConfig,
    groups: Vec<Group<B>>,
    sequences: HashMap<SequenceId, Sequence>,
    next_id: u64,
    prefixes: PrefixIndex,
    /// Positions before a window that are kept for a later truncation.
    kept_behind: usize,
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
            let pool_spec = spec.pool_spec(config.k_format, config.v_format);
            let pool = backend.kv_pool(pool_spec)?;
            Ok(Group {
                spec: *spec,
                pool,
                block_bytes: pool_spec.block_bytes(),
                allocator: Allocator::default(),
            })
        };
        let groups = model_config.cache_groups.iter().map(group).collect::<Result<_>>()?;
        Ok(Self {
            backend,
            config,
            groups,
            sequences: HashMap::new(),
            next_id: 0,
            prefixes: PrefixIndex::default(),
            kept_behind: 0,
        })
    }

    /// Keeps so many positions more before each sliding window, so that a sequence can always be
    /// [cut back](Self::truncate) by as many from here on.
    pub fn keep_behind(&mut self, positions: usize) {
        self.kept_behind = positions;
    }

    /// Formats and limits.
    pub fn config(&self) -> &KvCacheConfig {
        &self.config
    }

    /// Positions a sequence may have.
    pub fn context(&self) -> usize {
        self.config.context
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

    /// Starts a sequence that shares the first `length` positions of `id`; `None` when positions of a sliding layer that
    /// the next row would see are gone.
    ///
    /// # Panics
    /// When `id` was released.
    pub fn fork_at(&mut self, id: SequenceId, length: usize) -> Option<SequenceId> {
        if self.usable(id, length) < length {
            return None;
        }
        let fork = self.fork(id);
        self.truncate(fork, length).expect("checked above");
        Some(fork)
    }

    /// How many of the first `length` positions of a sequence another one can go on from: all of them, or none when
    /// positions of a sliding layer that the next row would see are gone.
    fn usable(&self, id: SequenceId, length: usize) -> usize {
        let sequence = &self.sequences[&id];
        let kept = |(table, group): (&BlockTable, &Group<B>)| {
            first_visible(group.spec.window, length) >= table.first * BLOCK_LEN
        };
        let all_kept = length <= sequence.length && sequence.tables.iter().zip(&self.groups).all(kept);
        if all_kept { length } else { 0 }
    }

    /// Keeps what a sequence holds for later prompts that begin with the same `tokens`, which are those of its
    /// positions. It costs no copy; when memory runs short, what was not used for longest goes first.
    ///
    /// # Panics
    /// When `id` was released, or has fewer positions than there are tokens.
    pub fn remember(&mut self, id: SequenceId, tokens: &[u32], salt: &Salt) {
        assert!(tokens.len() <= self.length(id), "more tokens than positions");
        if tokens.is_empty() {
            return;
        }
        let Some(snapshot) = self.fork_at(id, tokens.len()) else { return };
        if let Some(old) = self.prefixes.insert(salt.clone(), tokens.to_vec(), snapshot) {
            self.release(old);
        }
    }

    /// Starts a sequence with the longest remembered prefix of `tokens`, and says how many positions that is. The last
    /// token is never among them: it has to be run for its logits.
    pub fn resume(&mut self, tokens: &[u32], salt: &Salt) -> (SequenceId, usize) {
        let most = tokens.len().saturating_sub(1);
        let mut prefixes = std::mem::take(&mut self.prefixes);
        let found = prefixes.longest(salt, &tokens[..most], |id, common| self.usable(id, common));
        self.prefixes = prefixes;
        match found.and_then(|(id, n)| Some((self.fork_at(id, n)?, n))) {
            Some(resumed) => resumed,
            None => (self.create(), 0),
        }
    }

    /// Has the blocks of a sequence written to `store`, those that it does not hold yet. `tokens` are those of its
    /// positions. Returns when the blocks are copied, not when they are written.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When `id` was released, or has fewer positions than there are tokens.
    pub fn persist(&self, id: SequenceId, tokens: &[u32], salt: &Salt, store: &KvStore) -> Result<()> {
        let sequence = &self.sequences[&id];
        assert!(tokens.len() <= sequence.length, "more tokens than positions");
        let chain = store.chain(salt, tokens);
        for (g, (table, group)) in sequence.tables.iter().zip(&self.groups).enumerate() {
            for block in table.first..chain.len() {
                if store.contains(&chain, block, g) {
                    continue;
                }
                let mut bytes = Vec::with_capacity(group.block_bytes);
                self.backend.kv_export(&group.pool, table.blocks[block - table.first], &mut bytes)?;
                store.write(&chain, block, g, bytes);
            }
        }
        Ok(())
    }

    /// [Persists](Self::persist) all remembered sequences.
    ///
    /// # Errors
    /// When the device fails.
    pub fn persist_remembered(&self, store: &KvStore) -> Result<()> {
        let entries = self.prefixes.iter();
        entries.into_iter().try_for_each(|(salt, tokens, id)| self.persist(id, tokens, salt, store))
    }

    /// Starts a sequence with the longest prefix of `tokens` that `store` holds, if that is longer than `more_than`
    /// positions, and says how many positions it is. The last token is never among them.
    ///
    /// # Errors
    /// When the device fails.
    pub fn restore(
        &mut self,
        tokens: &[u32],
        salt: &Salt,
        store: &KvStore,
        more_than: usize,
    ) -> Result<Option<(SequenceId, usize)>> {
        let most = tokens.len().saturating_sub(1);
        // Groups without a window need every block; with one, only the last of them.
        let full = self.groups.iter().position(|g| g.spec.window.is_none()).unwrap_or(0);
        let chain = store.longest_chain(salt, tokens, full);
        let mut n_blocks = chain.len();
        while n_blocks > 0 {
            let length = ((n_blocks - 1) * BLOCK_LEN + chain.filled(n_blocks - 1)).min(most);
            if length <= more_than {
                break;
            }
            match self.restore_blocks(&chain, n_blocks, length, store)? {
                Restored::Whole(id) => return Ok(Some((id, length))),
                Restored::Without(missing) => n_blocks = missing,
                Restored::NoRoom => break,
            }
        }
        Ok(None)
    }

    /// Restores `length` positions out of the first `n_blocks` of a chain.
    fn restore_blocks(
        &mut self,
        chain: &Chain,
        n_blocks: usize,
        length: usize,
        store: &KvStore,
    ) -> Result<Restored> {
        let first = |group: &Group<B>| first_visible(group.spec.window, length) / BLOCK_LEN;
        for (g, group) in self.groups.iter().enumerate() {
            // Looked for from the end: the last one that is missing decides what can be had at most.
            let missing = (first(group)..n_blocks).rev().find(|&block| !store.contains(chain, block, g));
            if let Some(block) = missing {
                return Ok(Restored::Without(block));
            }
        }
        match self.keep_budget(|cache, g| n_blocks - first(&cache.groups[g])) {
            Err(EngineError::KvBudget { .. }) => return Ok(Restored::NoRoom),
            other => other?,
        }
        let id = self.create();
        for g in 0..self.groups.len() {
            let group = &mut self.groups[g];
            let begin = first(group);
            self.backend.kv_reserve(&mut group.pool, group.allocator.capacity_for(n_blocks - begin))?;
            let mut table = BlockTable { first: begin, blocks: Vec::new() };
            let (mut missing, mut failed) = (None, None);
            for block in begin..n_blocks {
                let Some(bytes) = store.read(chain, block, g) else {
                    missing = Some(block);
                    break;
                };
                let cell_block = group.allocator.allocate();
                table.blocks.push(cell_block);
                if let Err(error) = self.backend.kv_import(&mut group.pool, cell_block, &bytes) {
                    failed = Some(error);
                    break;
                }
            }
            self.sequences.get_mut(&id).expect("just created").tables[g] = table;
            if missing.is_some() || failed.is_some() {
                self.release(id);
            }
            if let Some(error) = failed {
                return Err(error.into());
            }
            if let Some(block) = missing {
                return Ok(Restored::Without(block));
            }
        }
        self.sequences.get_mut(&id).expect("just created").length = length;
        Ok(Restored::Whole(id))
    }

    /// Remembered sequences.
    pub fn remembered(&self) -> usize {
        self.prefixes.len()
    }

    /// Forgets all remembered sequences.
    pub fn forget(&mut self) {
        let mut prefixes = std::mem::take(&mut self.prefixes);
        prefixes.drain().for_each(|id| self.release(id));
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

    /// Bytes that the pools hold, blocks that are free for the next sequence included.
    pub fn bytes_held(&self) -> usize {
        self.groups.iter().map(|g| g.allocator.held() * g.block_bytes).sum()
    }

    /// Makes sure that `missing` blocks of each group can be taken within the budget: gives back the memory of free
    /// blocks, then forgets remembered sequences, the least recently used first.
    fn keep_budget(&mut self, missing: impl Fn(&Self, usize) -> usize) -> Result<()> {
        let Some(budget) = self.config.budget else { return Ok(()) };
        let held = |cache: &Self, g: usize| cache.groups[g].allocator.held_for(missing(cache, g));
        let used = |cache: &Self, g: usize| cache.groups[g].allocator.in_use() + missing(cache, g);
        let bytes = |cache: &Self, blocks: &dyn Fn(&Self, usize) -> usize| -> usize {
            (0..cache.groups.len()).map(|g| blocks(cache, g) * cache.groups[g].block_bytes).sum()
        };
        loop {
            if bytes(self, &held) <= budget {
                return Ok(());
            }
            let needed = bytes(self, &used);
            if needed <= budget {
                for g in 0..self.groups.len() {
                    let keep = missing(self, g);
                    let group = &mut self.groups[g];
                    let trimmed = group.allocator.trim(keep);
                    self.backend.kv_free(&mut group.pool, &trimmed)?;
                }
                return Ok(());
            }
            match self.prefixes.pop_oldest() {
                Some(id) => self.release(id),
                None => return Err(EngineError::KvBudget { needed, budget }),
            }
        }
    }

    /// Blocks of a group that the rows will take.
    fn missing(&self, g: usize, paths: &Paths) -> usize {
        let missing = paths.ends.iter().map(|(id, &end)| {
            let sequence = &self.sequences[id];
            sequence.tables[g].missing(sequence.length, end, &self.groups[g].allocator)
        });
        missing.sum()
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
        if needed > self.config.context {
            return Err(EngineError::ContextFull { needed, context: self.config.context });
        }
        self.keep_budget(|cache, g| cache.missing(g, &paths))?;
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
        for row in rows.iter().filter(|row| row.parent != Parent::Previous) {
            chains.remove(&row.sequence);
        }
        Ok(PreparedRows { batch, chains })
    }

    /// Room for every slot the rows take, in blocks that no other sequence shares.
    fn make_room(&mut self, paths: &Paths) -> Result<()> {
        for g in 0..self.groups.len() {
            // The pool grows first: when it cannot, no table has changed.
            let missing = self.missing(g, paths);
            let group = &mut self.groups[g];
            let n_blocks = group.allocator.capacity_for(missing);
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
                // One position more than the next row needs: the last one can be run again for its logits.
                let needed = first_visible(group.spec.window, end).saturating_sub(1 + self.kept_behind);
                table.release_before(needed, &mut group.allocator);
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

/// How far restoring came.
enum Restored {
    /// The sequence.
    Whole(SequenceId),
    /// This block cannot be had.
    Without(usize),
    /// The budget does not allow it.
    NoRoom,
}

/// First position that a row at `position` sees.
fn first_visible(window: Option<usize>, position: usize) -> usize {
    window.map_or(0, |w| (position + 1).saturating_sub(w))
}

/// A batch ready for a backend, and the length that each sequence that is no draft has once it is committed.
pub(crate) struct PreparedRows {
    pub batch: RowBatch,
    pub chains: HashMap<SequenceId, usize>,
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

/// Sequence names for tests.
#[cfg(test)]
pub(super) fn ids() -> impl Iterator<Item = SequenceId> {
    (0..).map(SequenceId)
}
