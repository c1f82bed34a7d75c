//! When the largest logits are found with a coarse copy of the output matrix, and what that saved.
//!
//! Results never depend on it ([`Backend::best`]); this decides about speed and memory alone.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use lapidary_backend::{Backend, Best};

use crate::error::Result;

/// Rows in a batch above which the whole matrix is read once for all of them.
pub const MOST_ROWS: usize = 4;
/// Rows that wanted their largest logits before [`Screen::Auto`] makes the copy: it takes as long as it saves on some
/// hundred rows, and short answers should not pay for it.
const PATIENCE: usize = 32;
/// The most rows for which the whole matrix is read after bounds that did not tell its rows apart. The first time it is
/// none, and twice as many each time in a row.
const LONGEST_PAUSE: usize = 64;
/// The share of the matrix's bytes, in percent, above which [`Screen::Auto`] does not make the copy.
const WORTHWHILE_PERCENT: usize = 65;
/// Bytes of a matrix below which [`Screen::Auto`] leaves it alone: the processor's caches hold it.
const WORTHWHILE_BYTES: usize = 64 << 20;

/// Whether the output matrix gets a coarse copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Screen {
    /// No.
    #[default]
    Off,
    /// Where it saves a good part of the matrix's bytes, once enough tokens were chosen.
    Auto,
    /// At load, wherever it can be made.
    Always,
}

/// What the coarse copy saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScreenStats {
    /// Bytes of the copy; 0 while there is none.
    pub bytes: usize,
    /// Rows whose largest logits were found with it.
    pub screened: usize,
    /// Rows of the matrix that were computed exactly for them, together.
    pub rescored: usize,
    /// Rows for which the whole matrix was read because the bounds did not suffice.
    pub declined: usize,
}

/// The state of it.
pub(super) struct Screening {
    /// Bytes of the copy, made or not.
    bytes: usize,
    importance: Vec<f32>,
    possible: AtomicBool,
    made: AtomicBool,
    waited: AtomicUsize,
    pause: AtomicUsize,
    next_pause: AtomicUsize,
    screened: AtomicUsize,
    rescored: AtomicUsize,
    declined: AtomicUsize,
}

impl Screening {
    /// For an output matrix of `matrix_bytes` that meets activations with the squares `importance`. `None` when there is
    /// nothing to gain.
    pub(super) fn new<B: Backend>(
        backend: &B,
        matrix: &B::Matrix,
        matrix_bytes: usize,
        importance: Vec<f32>,
        mode: Screen,
    ) -> Result<Option<Self>> {
        let Some(bytes) = backend.screen_bytes(matrix) else { return Ok(None) };
        let worthwhile = matrix_bytes >= WORTHWHILE_BYTES && bytes <= matrix_bytes / 100 * WORTHWHILE_PERCENT;
        if mode == Screen::Off || (mode == Screen::Auto && !worthwhile) {
            return Ok(None);
        }
        let screening = Self {
            bytes,
            importance,
            possible: AtomicBool::new(true),
            made: AtomicBool::new(false),
            waited: AtomicUsize::new(0),
            pause: AtomicUsize::new(0),
            next_pause: AtomicUsize::new(0),
            screened: AtomicUsize::new(0),
            rescored: AtomicUsize::new(0),
            declined: AtomicUsize::new(0),
        };
        if mode == Screen::Always {
            screening.make(backend, matrix)?;
        }
        Ok(Some(screening))
    }

    /// Makes the copy now, if it can be and was not made.
    pub(super) fn make<B: Backend>(&self, backend: &B, matrix: &B::Matrix) -> Result<()> {
        if self.possible.load(Relaxed) && !self.made.load(Relaxed) {
            let made = backend.screen(matrix, &self.importance)?;
            self.made.store(made, Relaxed);
            self.possible.store(made, Relaxed);
        }
        Ok(())
    }

    /// The rows of `matrix` with the `k` largest products with each of `n` rows of `x`; `None` when the whole matrix is to
    /// be read.
    pub(super) fn best<B: Backend>(
        &self,
        backend: &B,
        (x, ks): (&B::Buffer, &[usize]),
        matrix: &B::Matrix,
        softcap: Option<f32>,
    ) -> Result<Option<Vec<Best>>> {
        if !self.possible.load(Relaxed) || ks.len() > MOST_ROWS {
            return Ok(None);
        }
        if !self.made.load(Relaxed) {
            if self.waited.fetch_add(ks.len(), Relaxed) < PATIENCE {
                return Ok(None);
            }
            self.make(backend, matrix)?;
        }
        let paused = self.pause.load(Relaxed);
        if paused > 0 {
            self.pause.store(paused - 1, Relaxed);
            return Ok(None);
        }
        let mut all = Vec::with_capacity(ks.len());
        for (row, &k) in ks.iter().enumerate() {
            let Some(best) = backend.best(x, row, matrix, k, softcap)? else {
                self.declined.fetch_add(1, Relaxed);
                let pause = self.next_pause.load(Relaxed);
                self.pause.store(pause, Relaxed);
                self.next_pause.store((2 * pause).clamp(1, LONGEST_PAUSE), Relaxed);
                return Ok(None);
            };
            all.push(best);
        }
        self.next_pause.store(0, Relaxed);
        self.screened.fetch_add(all.len(), Relaxed);
        self.rescored.fetch_add(all.iter().map(|b| b.ids.len()).sum(), Relaxed);
        Ok(Some(all))
    }

    pub(super) fn stats(&self) -> ScreenStats {
        ScreenStats {
            bytes: if self.made.load(Relaxed) { self.bytes } else { 0 },
            screened: self.screened.load(Relaxed),
            rescored: self.rescored.load(Relaxed),
            declined: self.declined.load(Relaxed),
        }
    }

    /// Bytes that the copy takes or will take.
    pub(super) fn reserved_bytes(&self) -> usize {
        if self.possible.load(Relaxed) { self.bytes } else { 0 }
    }
}
