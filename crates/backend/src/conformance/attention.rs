//! Attention over paged keys and values.

use super::Tolerance;
use super::cache::{attend, format_pairs, store};
use super::compare::{close, same_bits};
use super::random::Random;
use crate::{
    Attention, Backend, GroupRows, HeadLayout, KvFormat, KvPoolSpec, ReferenceBackend, RowBatch, RowView,
};

const LAYERS: usize = 2;

/// One sequence: positions stored before, and the new rows by their parents (an earlier new row, or none where the
/// row follows the last stored position).
#[derive(Clone, Debug)]
struct Sequence {
    committed: usize,
    parents: Vec<Option<usize>>,
}

impl Sequence {
    /// `n` new rows one after the other.
    fn chain(committed: usize, n: usize) -> Self {
        Self { committed, parents: (0..n).map(|i| i.checked_sub(1)).collect() }
    }

    /// `n` new rows with random parents.
    fn tree(committed: usize, n: usize, random: &mut Random) -> Self {
        let parent = |i: usize, random: &mut Random| match random.below(i + 1) {
            0 => None,
            p => Some(p - 1),
        };
        Self { committed, parents: (0..n).map(|i| parent(i, random)).collect() }
    }

    fn len(&self) -> usize {
        self.committed + self.parents.len()
    }

    /// New rows from the root to `row`, itself included.
    fn path(&self, row: usize) -> Vec<usize> {
        let mut path: Vec<usize> = std::iter::successors(Some(row), |&r| self.parents[r]).collect();
        path.reverse();
        path
    }
}

/// Shapes and contents of an attention call, without the places of its blocks.
#[derive(Clone, Debug)]
struct Scene {
    layout: HeadLayout,
    formats: (KvFormat, KvFormat),
    window: Option<usize>,
    scale: f32,
    sequences: Vec<Sequence>,
    /// Query, key and value columns of each stored position of each sequence.
    history: Vec<Vec<f32>>,
    /// The same of all new rows.
    fresh: Vec<f32>,
}

impl Scene {
    fn new(
        random: &mut Random,
        layout: HeadLayout,
        formats: (KvFormat, KvFormat),
        window: Option<usize>,
        sequences: Vec<Sequence>,
    ) -> Self {
        let history = sequences.iter().map(|s| random.normals(s.committed * layout.stride())).collect();
        let n_rows: usize = sequences.iter().map(|s| s.parents.len()).sum();
        let fresh = random.normals(n_rows * layout.stride());
        let scale = 1.5 / (layout.head_dim as f32).sqrt();
        Self { layout, formats, window, scale, sequences, history, fresh }
    }

    fn n_rows(&self) -> usize {
        self.sequences.iter().map(|s| s.parents.len()).sum()
    }

    fn out_cols(&self) -> usize {
        self.layout.heads * self.layout.head_dim
    }

    /// Fills a cache of blocks in random order and attends all new rows, or the one named.
    ///
    /// Every cell that no row may look at holds NaN, or huge numbers in formats that refuse NaN.
    fn on<B: Backend>(&self, backend: &B, blocks: Blocks, only: Option<usize>) -> Vec<f32> {
        let layer = LAYERS - 1;
        let placed = self.place(blocks);
        let mut pool = backend
            .kv_pool(KvPoolSpec {
                layers: LAYERS,
                kv_heads: self.layout.kv_heads,
                head_dim: self.layout.head_dim,
                k_format: self.formats.0,
                v_format: self.formats.1,
                block_len: blocks.len,
            })
            .unwrap();
        backend.kv_reserve(&mut pool, placed.n_blocks).unwrap();
        let all: Vec<u32> = (0..(placed.n_blocks * blocks.len) as u32).collect();
        let poison = self.poison().repeat(all.len());
        for layer in 0..LAYERS {
            store(backend, &mut pool, self.layout, layer, &poison, &all);
        }
        for (history, (first, cells)) in self.history.iter().zip(&placed.history) {
            let kept = &history[first * self.layout.stride()..];
            store(backend, &mut pool, self.layout, layer, kept, cells);
        }
        let group = &placed.batch.groups[1];
        store(backend, &mut pool, self.layout, layer, &self.fresh, &group.store);

        let attention =
            Attention { layout: self.layout, scale: self.scale, window: self.window, group: 1, layer };
        let Some(row) = only else {
            return attend(backend, &pool, &attention, &self.fresh, &placed.batch);
        };
        let alone = RowBatch {
            tokens: vec![0],
            positions: vec![placed.batch.positions[row]],
            groups: vec![
                GroupRows::default(),
                GroupRows { store: vec![group.store[row]], views: vec![group.views[row]], ..group.clone() },
            ],
        };
        let stride = self.layout.stride();
        attend(backend, &pool, &attention, &self.fresh[row * stride..(row + 1) * stride], &alone)
    }

    /// Columns of a row that no row may look at.
    fn poison(&self) -> Vec<f32> {
        let poison = |format: KvFormat| if format.turbo_bits().is_some() { 1e30 } else { f32::NAN };
        let mut row = vec![poison(self.formats.0); self.layout.stride()];
        row[self.layout.v_offset()..].fill(poison(self.formats.1));
        row
    }

    /// Gives every sequence blocks and every new row its view.
    fn place(&self, blocks: Blocks) -> Placed {
        let needed: usize = self.sequences.iter().map(|s| s.len().div_ceil(blocks.len)).sum();
        let n_blocks = needed + 3;
        let mut free = Random::new(blocks.seed).permutation(n_blocks);
        let mut group = GroupRows::default();
        let (mut history, mut positions) = (Vec::new(), Vec::new());
        for sequence in &self.sequences {
            // As a cache does, blocks that fell out of the window of the next row are gone.
            let first_seen = self.window.map_or(0, |w| (sequence.committed + 1).saturating_sub(w));
            let first_block = (first_seen / blocks.len).min(sequence.len() / blocks.len);
            let table = group.blocks.len();
            let owned = sequence.len().div_ceil(blocks.len) - first_block;
            group.blocks.extend(free.drain(..owned).map(|b| b as u32));
            let cell = |slot: usize, group: &GroupRows| {
                let block = group.blocks[table + slot / blocks.len - first_block] as usize;
                (block * blocks.len + slot % blocks.len) as u32
            };
            let kept = (first_block * blocks.len).min(sequence.committed);
            history.push((kept, (kept..sequence.committed).map(|p| cell(p, &group)).collect()));
            for row in 0..sequence.parents.len() {
                let path = sequence.path(row);
                let position = sequence.committed + path.len() - 1;
                let is_chain = path.iter().enumerate().all(|(depth, &r)| depth == r);
                let tail = group.tails.len() as u32;
                let shared = if is_chain { position + 1 } else { sequence.committed };
                if !is_chain {
                    let cells: Vec<u32> =
                        path.iter().map(|&r| cell(sequence.committed + r, &group)).collect();
                    group.tails.extend(cells);
                }
                let store = cell(sequence.committed + row, &group);
                group.store.push(store);
                let (table, first_block, shared) = (table as u32, first_block as u32, shared as u32);
                group.views.push(RowView { table, first_block, shared, tail });
                positions.push(position as u32);
            }
        }
        let batch = RowBatch {
            tokens: vec![0; positions.len()],
            positions,
            groups: vec![GroupRows::default(), group],
        };
        Placed { n_blocks, history, batch }
    }

    /// Compares with the reference, and every row with itself alone.
    fn check<B: Backend>(&self, backend: &B, tolerance: &Tolerance, blocks: Blocks) {
        let (found, expected) = (self.on(backend, blocks, None), self.on(&ReferenceBackend, blocks, None));
        let what = format!(
            "attention of {:?}, formats {:?}, window {:?}, {blocks:?}, {:?}",
            self.layout, self.formats, self.window, self.sequences
        );
        let bound = tolerance.relative * self.magnitude();
        close(&what, &found, &expected, |_| bound);
        for row in 0..self.n_rows() {
            let alone = self.on(backend, blocks, Some(row));
            let at = row * self.out_cols()..(row + 1) * self.out_cols();
            same_bits(&format!("row {row} alone, {what}"), &alone, &found[at]);
        }
    }

    /// What rounding errors are relative to: the greatest value, times what the weights amplify errors of scores.
    fn magnitude(&self) -> f32 {
        let (dim, layout) = (self.layout.head_dim, self.layout);
        let (mut value, mut query, mut key) = (0.0f32, 0.0f32, 0.0f32);
        for row in self
            .history
            .iter()
            .flat_map(|h| h.chunks(layout.stride()))
            .chain(self.fresh.chunks(layout.stride()))
        {
            let norm = |heads: &[f32]| {
                heads.chunks(dim).map(|h| h.iter().map(|x| x * x).sum::<f32>().sqrt()).fold(0.0, f32::max)
            };
            query = query.max(norm(&row[..layout.k_offset()]));
            key = key.max(norm(&row[layout.k_offset()..layout.v_offset()]));
            value = row[layout.v_offset()..].iter().fold(value, |a, x| a.max(x.abs()));
        }
        value * (1.0 + self.scale * query * key)
    }
}

/// Size and order of a cache's blocks.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    len: usize,
    seed: u64,
}

struct Placed {
    n_blocks: usize,
    /// For each sequence the first stored position and the cells from there on.
    history: Vec<(usize, Vec<u32>)>,
    batch: RowBatch,
}

fn layout(heads: usize, kv_heads: usize, head_dim: usize) -> HeadLayout {
    HeadLayout { heads, kv_heads, head_dim }
}

/// [`Backend::kv_store`] and [`Backend::attention`]: prompts and single rows of one or several sequences, with and
/// without a window, every pair of formats.
pub fn attention<B: Backend>(backend: &B, tolerance: &Tolerance) {
    let mut random = Random::new(60);
    let chain = Sequence::chain;
    let cases = [
        (layout(1, 1, 2), None, vec![chain(0, 1)]),
        (layout(4, 1, 256), None, vec![chain(0, 1)]),
        (layout(4, 1, 256), None, vec![chain(0, 45)]),
        (layout(4, 1, 256), Some(512), vec![chain(600, 2)]),
        (layout(2, 1, 512), None, vec![chain(270, 1)]),
        (layout(16, 2, 32), Some(40), vec![chain(0, 150)]),
        (layout(3, 3, 34), None, vec![chain(31, 1), chain(0, 1), chain(257, 3)]),
        (layout(8, 4, 48), Some(20), vec![chain(19, 2), chain(500, 9), chain(0, 25)]),
        (layout(5, 1, 16), Some(1), vec![chain(3, 6)]),
        (layout(6, 2, 64), Some(256), vec![chain(255, 1), chain(256, 1), chain(767, 3)]),
        (layout(2, 2, 18), None, vec![chain(1100, 1)]),
        (layout(8, 1, 64), Some(32), vec![chain(64, 70)]),
        (layout(8, 2, 160), None, vec![chain(290, 2), chain(5, 30)]),
        (layout(16, 2, 512), Some(300), vec![chain(310, 1), chain(0, 12)]),
        (layout(4, 4, 96), None, vec![chain(40, 9)]),
        (layout(1, 1, 16), None, vec![chain(3, 3)]),
    ];
    for (i, (layout, window, sequences)) in cases.into_iter().enumerate() {
        let pairs = format_pairs(layout.head_dim);
        // All pairs for the small cases, one in turn for the others.
        let pairs = if i < 3 { pairs } else { vec![pairs[i % pairs.len()]] };
        for formats in pairs {
            let scene = Scene::new(&mut random, layout, formats, window, sequences.clone());
            let blocks = Blocks { len: [32, 16, 7, 64][random.below(4)], seed: random.bits() };
            scene.check(backend, tolerance, blocks);
        }
    }
}

/// [`Backend::attention`] of draft trees: rows see their ancestors and not their siblings.
pub fn attention_of_trees<B: Backend>(backend: &B, tolerance: &Tolerance) {
    let mut random = Random::new(61);
    let shapes = [(0, 6, None), (30, 12, None), (300, 16, Some(64)), (513, 9, None), (40, 20, Some(8))];
    for (i, (committed, n, window)) in shapes.into_iter().enumerate() {
        let sequences = vec![Sequence::tree(committed, n, &mut random), Sequence::chain(17, 2)];
        let pairs = format_pairs(64);
        let formats = pairs[7 * i % pairs.len()];
        let scene = Scene::new(&mut random, layout(4, 2, 64), formats, window, sequences);
        scene.check(backend, tolerance, Blocks { len: 32, seed: random.bits() });
    }
}

/// Size and order of the blocks do not change a bit.
pub fn attention_ignores_block_layout<B: Backend>(backend: &B, _: &Tolerance) {
    let mut random = Random::new(62);
    for formats in format_pairs(32) {
        for window in [None, Some(77)] {
            let sequences = vec![Sequence::chain(301, 1), Sequence::chain(33, 20)];
            let scene = Scene::new(&mut random, layout(4, 2, 32), formats, window, sequences);
            let expected = scene.on(backend, Blocks { len: 32, seed: 1 }, None);
            for (len, seed) in [(32, 2), (16, 3), (1, 4), (48, 5), (100, 6)] {
                let blocks = Blocks { len, seed };
                same_bits(&format!("attention in {blocks:?}"), &scene.on(backend, blocks, None), &expected);
            }
        }
    }
}

/// Infinite and undefined vectors of later rows do not reach the rows before them.
pub fn attention_keeps_rows_apart<B: Backend>(backend: &B, _: &Tolerance) {
    let mut random = Random::new(63);
    // What is undefined does not get into the other formats at all.
    for formats in
        [KvFormat::F32, KvFormat::F16].into_iter().flat_map(|k| [(k, KvFormat::F32), (k, KvFormat::F16)])
    {
        let sequences = vec![Sequence::chain(250, 40)];
        let mut scene = Scene::new(&mut random, layout(4, 1, 64), formats, Some(100), sequences);
        let blocks = Blocks { len: 32, seed: 9 };
        let expected = scene.on(backend, blocks, None);
        let bad_from = 13;
        let stride = scene.layout.stride();
        for (i, x) in scene.fresh[bad_from * stride..].iter_mut().enumerate() {
            *x = [f32::INFINITY, f32::NAN, f32::NEG_INFINITY, *x][i % 4];
        }
        let found = scene.on(backend, blocks, None);
        let good = bad_from * scene.out_cols();
        same_bits("rows before infinite ones", &found[..good], &expected[..good]);
        assert!(found[good..].iter().any(|x| x.is_nan()), "rows that see undefined vectors are undefined");
    }
}
