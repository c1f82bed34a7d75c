//! Worker pool for short, frequent parallel phases.
//!
//! A decode step runs some hundred phases of 10 to 1000 µs, so waking a sleeping thread for each would cost more
//! than the work. Workers spin for a bounded time after a phase and only then park; the caller takes part in
//! every phase itself. Tasks are handed out one by one from an atomic counter, so which thread runs a task is
//! not fixed: results must not depend on it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker spins for the next phase before it parks.
const SPIN: Duration = Duration::from_micros(200);

/// A fixed set of threads that run the tasks of one phase together.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One phase at a time; a second caller waits here.
    turn: Mutex<()>,
}

struct Shared {
    /// Counts phases; a change tells the workers that `phase` holds new work.
    epoch: AtomicUsize,
    phase: Mutex<Option<Phase>>,
    next_task: AtomicUsize,
    n_tasks: AtomicUsize,
    /// Workers that have not finished the current phase.
    busy: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    parked: Mutex<usize>,
    wake: Condvar,
}

/// The body of a phase, with its lifetime erased: `Pool::run` does not return before all workers are done.
#[derive(Clone, Copy)]
struct Phase(*const (dyn Fn(usize, usize) + Sync));

// SAFETY: the pointee is `Sync` and outlives the phase, because `run` blocks until `busy` is zero.
unsafe impl Send for Phase {}

impl Pool {
    /// A pool of `n_threads` threads (at least one), counting the caller of [`Pool::run`]; fewer when the operating
    /// system refuses to start more.
    pub fn new(n_threads: usize) -> Self {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            phase: Mutex::new(None),
            next_task: AtomicUsize::new(0),
            n_tasks: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            parked: Mutex::new(0),
            wake: Condvar::new(),
        });
        let workers = (1..n_threads.max(1))
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let builder = std::thread::Builder::new().name(format!("lapidary-{index}"));
                builder.spawn(move || shared.work(index)).ok()
            })
            .collect();
        Self { shared, workers, turn: Mutex::new(()) }
    }

    /// Threads that take part in a phase, the caller among them.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(index, thread)` for every `index < n_tasks` and returns when all are done.
    ///
    /// `thread` is below [`Pool::n_threads`] and names per-thread scratch. Tasks start in order of their index.
    /// Must not be called from inside a task.
    ///
    /// # Panics
    /// When a task panicked.
    pub fn run(&self, n_tasks: usize, task: impl Fn(usize, usize) + Sync) {
        if n_tasks <= 1 || self.workers.is_empty() {
            (0..n_tasks).for_each(|index| task(index, 0));
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        let shared = &*self.shared;
        let body: *const (dyn Fn(usize, usize) + Sync) = &task;
        // SAFETY: only the lifetime changes; `finish` below waits for every worker before `task` is dropped,
        // also when the caller's own share panics.
        let body: *const (dyn Fn(usize, usize) + Sync + 'static) = unsafe { std::mem::transmute(body) };
        *shared.phase.lock().unwrap() = Some(Phase(body));
        shared.next_task.store(0, Ordering::Relaxed);
        shared.n_tasks.store(n_tasks, Ordering::Relaxed);
        shared.busy.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::Release);
        if *shared.parked.lock().unwrap() > 0 {
            shared.wake.notify_all();
        }

        let own = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shared.drain(&task, 0)));
        let mut spins = 0u32;
        while shared.busy.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins.is_multiple_of(1 << 12) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        let worker_panicked = shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(payload) = own {
            std::panic::resume_unwind(payload);
        }
        assert!(!worker_panicked, "a worker thread panicked during a parallel phase");
    }
}

impl Shared {
    fn drain(&self, task: &(dyn Fn(usize, usize) + Sync), thread: usize) {
        let n = self.n_tasks.load(Ordering::Relaxed);
        loop {
            let index = self.next_task.fetch_add(1, Ordering::Relaxed);
            if index >= n {
                return;
            }
            task(index, thread);
        }
    }

    fn work(&self, thread: usize) {
        let mut seen = 0;
        while self.wait_for_phase(seen) {
            seen += 1;
            let phase = self.phase.lock().unwrap().expect("an epoch begins with a phase");
            // SAFETY: `run` keeps the closure alive until `busy` reaches zero.
            let body = unsafe { &*phase.0 };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.drain(body, thread)));
            if done.is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.busy.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits until the epoch differs from `seen`; false when the pool is being dropped.
    fn wait_for_phase(&self, seen: usize) -> bool {
        let ready = || self.epoch.load(Ordering::Acquire) != seen || self.stop.load(Ordering::Relaxed);
        let begin = Instant::now();
        while !ready() {
            for _ in 0..256 {
                if ready() {
                    return !self.stop.load(Ordering::Relaxed);
                }
                std::hint::spin_loop();
            }
            if begin.elapsed() > SPIN {
                let mut parked = self.parked.lock().unwrap();
                *parked += 1;
                while !ready() {
                    parked = self.wake.wait(parked).unwrap();
                }
                *parked -= 1;
            }
        }
        !self.stop.load(Ordering::Relaxed)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        drop(self.shared.parked.lock().unwrap_or_else(|e| e.into_inner()));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker's panic was already reported by `run`.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads);
            for n in [0, 1, 2, 7, 1000] {
                let hits: Vec<AtomicU64> = (0..n).map(|_| AtomicU64::new(0)).collect();
                pool.run(n, |index, thread| {
                    assert!(thread < threads);
                    hits[index].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn parked_workers_wake_up() {
        let pool = Pool::new(2);
        for _ in 0..3 {
            std::thread::sleep(SPIN * 20);
            let sum = AtomicU64::new(0);
            pool.run(100, |index, _| {
                sum.fetch_add(index as u64, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 4950);
        }
    }

    #[test]
    fn a_panicking_task_panics_the_caller_and_leaves_the_pool_usable() {
        let pool = Pool::new(2);
        let run = || pool.run(50, |index, _| assert_ne!(index, 17));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
        let sum = AtomicU64::new(0);
        pool.run(10, |index, _| {
            sum.fetch_add(index as u64, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }
}
