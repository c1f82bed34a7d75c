//! The thread that writes blocks.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;

use super::file::{self, Header};
use super::{Known, Shared, temporary_name};

/// Bytes that may wait to be written.
const BACKLOG: usize = 512 << 20;

/// A block to write.
pub struct Job {
    pub name: String,
    pub header: Header,
    pub bytes: Vec<u8>,
}

/// Handle of the thread; it ends, its work done, when this is dropped.
pub struct Writer {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    bytes: usize,
    busy: bool,
    closed: bool,
}

impl Queue {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next job; `None` when no more will come.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        state.busy = false;
        self.changed.notify_all();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.bytes -= job.bytes.len();
                state.busy = true;
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Writer {
    pub fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let (jobs, target) = (Arc::clone(&queue), Arc::clone(&shared));
        let thread =
            std::thread::Builder::new().name("kv-store".into()).spawn(move || work(&jobs, &target))?;
        Ok(Self { queue, thread: Some(thread), shared })
    }

    pub fn push(&self, job: Job) {
        let mut state = self.queue.state();
        // One job always goes in, however large.
        if state.bytes + job.bytes.len() > BACKLOG && !state.jobs.is_empty() {
            return;
        }
        let waits = state.jobs.iter().any(|j| j.name == job.name);
        if waits || self.shared.index().files.contains_key(&job.name) {
            return;
        }
        state.bytes += job.bytes.len();
        state.jobs.push_back(job);
        self.queue.changed.notify_all();
    }

    pub fn flush(&self) {
        let mut state = self.queue.state();
        while state.busy || !state.jobs.is_empty() {
            state = self.queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.state().closed = true;
        self.queue.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn work(queue: &Queue, shared: &Shared) {
    let mut failed = false;
    while let Some(job) = queue.next() {
        match store(&job, shared) {
            Ok(()) => failed = false,
            // A full disk fails for every block: one warning is enough.
            Err(error) if !failed => {
                failed = true;
                (shared.warn)(format!("cannot store keys and values in {}: {error}", shared.dir.display()));
            }
            Err(_) => {}
        }
    }
}

/// Writes the file under a temporary name and gives it its own.
fn store(job: &Job, shared: &Shared) -> io::Result<()> {
    let bytes = file::size(job.bytes.len());
    if bytes > shared.limit {
        let limit = shared.limit;
        return Err(io::Error::other(format!("a block takes {bytes} bytes, the store may hold {limit}")));
    }
    let temporary = shared.dir.join(temporary_name());
    let target = shared.dir.join(&job.name);
    let written = File::create(&temporary)
        .and_then(|mut file| file::write(&mut file, &job.header, &job.bytes))
        .and_then(|()| fs::rename(&temporary, &target))
        // The name is safe when the folder is.
        .and_then(|()| File::open(&shared.dir)?.sync_all());
    if let Err(error) = written {
        drop(fs::remove_file(&temporary));
        return Err(error);
    }
    shared.index().insert(job.name.clone(), Known { bytes, used: SystemTime::now() });
    shared.make_room();
    Ok(())
}
