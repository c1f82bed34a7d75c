//! One sequence's speculation: asks the drafter, takes what pays, learns from what came of it.

use std::time::{Duration, Instant};

use lapidary_backend::Backend;

use super::calibration::Calibration;
use super::cost::RowCosts;
use super::drafter::{DraftRequest, Drafter};
use super::plan::worthwhile;
use super::stats::SpeculationStats;
use super::switch::Switch;
use super::tree::DraftTree;
use crate::error::Result;
use crate::kv::{KvCache, SequenceId};

/// Passes with one row that are measured before anything is drafted.
const PASSES_MEASURED: usize = 2;

/// Limits of speculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeculatorConfig {
    /// Drafted tokens that a pass checks at most.
    pub max_nodes: usize,
    /// Drafted tokens of a path at most.
    pub max_depth: usize,
    /// Whether to take only what promises to pay; else every draft is checked in full.
    pub adapt: bool,
}

impl Default for SpeculatorConfig {
    fn default() -> Self {
        Self { max_nodes: 16, max_depth: 16, adapt: true }
    }
}

/// A text that is to be drafted for.
pub struct Draftable<'a, B: Backend> {
    /// The text, its last token not yet in the cache.
    pub text: &'a [u32],
    /// Tokens that may still follow it, at least 1.
    pub room: usize,
    /// The model's cache.
    pub cache: &'a mut KvCache<B>,
    /// The text's sequence in it.
    pub sequence: SequenceId,
}

/// Speculation for one sequence.
pub struct Speculator<B: Backend> {
    drafter: Box<dyn Drafter<B>>,
    config: SpeculatorConfig,
    calibration: Calibration,
    switch: Switch,
    plain_passes: usize,
    /// What the drafter said last, and how much of it is being checked.
    drafted: DraftTree,
    checked: DraftTree,
    draft_time: Duration,
    /// Time that drafting takes a token deep, in seconds, averaged.
    time_per_depth: f64,
    stats: SpeculationStats,
}

impl<B: Backend> Speculator<B> {
    /// Speculation by `drafter`.
    pub fn new(drafter: Box<dyn Drafter<B>>, config: SpeculatorConfig) -> Self {
        Self {
            drafter,
            config,
            calibration: Calibration::default(),
            switch: Switch::default(),
            plain_passes: 0,
            drafted: DraftTree::new(),
            checked: DraftTree::new(),
            draft_time: Duration::ZERO,
            time_per_depth: 0.0,
            stats: SpeculationStats::default(),
        }
    }

    /// The drafter.
    pub fn drafter(&self) -> &dyn Drafter<B> {
        &*self.drafter
    }

    /// What was done so far.
    pub fn stats(&self) -> &SpeculationStats {
        &self.stats
    }

    /// The draft to check in the next pass, empty when plain decoding promises more.
    ///
    /// # Errors
    /// When the drafter's device fails.
    pub fn draft(&mut self, work: Draftable<'_, B>, costs: &RowCosts) -> Result<&DraftTree> {
        let begin = Instant::now();
        (self.drafted, self.checked) = (DraftTree::new(), DraftTree::new());
        // The last token needs no successor.
        let most = self.config.max_depth.min(work.room.saturating_sub(1));
        if most > 0 && !work.text.is_empty() {
            match (self.config.adapt, costs.estimate(1)) {
                (false, _) => self.draft_all(work, most)?,
                (true, Some(one)) if self.plain_passes >= PASSES_MEASURED && self.switch.on() => {
                    self.draft_worthwhile(work, most, one, costs)?;
                }
                _ => {}
            }
        }
        self.draft_time = begin.elapsed();
        Ok(&self.checked)
    }

    fn draft_all(&mut self, work: Draftable<'_, B>, depth: usize) -> Result<()> {
        self.drafted = self.ask(work, depth, 0.0)?;
        self.checked = self.drafted.limited(depth, self.config.max_nodes);
        Ok(())
    }

    fn draft_worthwhile(
        &mut self,
        work: Draftable<'_, B>,
        depth: usize,
        one: f64,
        costs: &RowCosts,
    ) -> Result<()> {
        // A node that takes so much longer must bring as much of a token.
        let row = costs.estimate(2).map_or(0.0, |two| two - one);
        let floor = ((row + self.time_per_depth) / one) as f32;
        let begin = Instant::now();
        self.drafted = self.ask(work, depth, floor.clamp(0.01, 0.9))?;
        let spent = begin.elapsed().as_secs_f64();
        let deepest = self.drafted.depths().into_iter().max().map_or(1, |d| d + 1);
        self.time_per_depth += (spent / deepest as f64 - self.time_per_depth) / 8.0;
        let limits = (self.config.max_nodes, spent);
        self.checked = worthwhile(&self.drafted, &self.calibration, costs, limits);
        // Time spent on drafts that are never checked is lost as well.
        if self.checked.is_empty() && spent > 0.02 * one {
            self.switch.judge(one + spent, one);
        }
        Ok(())
    }

    fn ask(&mut self, work: Draftable<'_, B>, depth: usize, floor: f32) -> Result<DraftTree> {
        let mut request = DraftRequest {
            text: work.text,
            depth,
            nodes: self.config.max_nodes,
            floor,
            cache: work.cache,
            sequence: work.sequence,
        };
        let tree = self.drafter.draft(&mut request)?;
        Ok(tree.limited(depth, usize::MAX))
    }

    /// Says that the draft is not going to be checked.
    pub fn withdraw(&mut self) {
        self.checked = DraftTree::new();
    }

    /// Learns from a round: `chosen` are the tokens that the model chose in the pass, which took `time` for the rows of the
    /// draft and the one before it. `costs` may be shared by sequences; the caller has told them of the pass.
    pub fn learn(&mut self, chosen: &[u32], time: Duration, costs: &RowCosts) {
        self.calibrate(chosen);
        let stats = &mut self.stats;
        stats.passes += 1;
        stats.tokens += chosen.len();
        stats.draft_time += self.draft_time;
        stats.time += self.draft_time + time;
        if self.checked.is_empty() {
            self.plain_passes += 1;
        } else {
            stats.drafted_passes += 1;
            stats.drafted += self.checked.len();
            let mut at = None;
            for (depth, &token) in chosen.iter().enumerate() {
                if self.checked.children(at).next().is_none() {
                    break;
                }
                let next = self.checked.child(at, token);
                stats.reach(depth, next.is_some());
                at = next;
                if at.is_none() {
                    break;
                }
            }
            if let Some(one) = costs.estimate(1).filter(|_| self.config.adapt) {
                self.switch.judge((self.draft_time + time).as_secs_f64(), one * chosen.len() as f64);
            }
        }
        self.stats.switched_off = self.switch.rests();
        self.stats.plain_pass = costs.measured(1).map(Duration::from_secs_f64);
    }

    /// Compares all that was drafted, checked or not, with what was chosen.
    fn calibrate(&mut self, chosen: &[u32]) {
        let mut at = None;
        for &token in chosen {
            let next = self.drafted.child(at, token);
            for node in self.drafted.children(at) {
                self.calibration.observe(self.drafted.nodes()[node].confidence, Some(node) == next);
            }
            at = next;
            if at.is_none() {
                break;
            }
        }
    }
}
