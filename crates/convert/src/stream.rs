//! Encoding tensors on all cores and writing them in order, with bounded memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex};

use lapidary_gguf::block;

use crate::error::{ConvertError, Result};
use crate::plan::{PlannedTensor, Source};
use crate::progress::{Cancel, Progress};

/// Elements that a worker converts at once: 4 MiB of f32.
const CHUNK_ELEMENTS: u64 = 1 << 20;
/// Chunks that may be finished or in work ahead of the writer, for each worker.
const CHUNKS_AHEAD: usize = 4;

/// Where finished data goes, in the order of the tensors.
pub trait Sink {
    /// Appends to the data of the tensor that is being written.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;
    /// Ends a tensor's data.
    fn end_tensor(&mut self) -> Result<()>;
}

/// Some rows of one tensor.
struct Chunk {
    tensor: usize,
    rows: Range<u64>,
}

/// Encodes all tensors and hands their data to the sink in order.
///
/// # Errors
/// The first error of a worker or of the sink; [`ConvertError::Cancelled`] when the switch was thrown.
pub fn write_all(
    tensors: &[PlannedTensor],
    threads: usize,
    sink: &mut dyn Sink,
    progress: &mut dyn FnMut(Progress),
    cancel: &Cancel,
) -> Result<()> {
    let chunks = chunks(tensors)?;
    let threads = threads.clamp(1, chunks.len().max(1));
    let gate = Gate::new(threads * CHUNKS_AHEAD);
    let next = AtomicUsize::new(0);
    let (sender, receiver) = sync_channel(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let sender = sender.clone();
            scope.spawn(|| work(tensors, &chunks, &next, &gate, cancel, sender));
        }
        drop(sender);
        let written = write_in_order(tensors, &chunks, receiver, &gate, sink, progress, cancel);
        gate.close();
        written
    })
}

/// Cuts the tensors into chunks of whole rows.
fn chunks(tensors: &[PlannedTensor]) -> Result<Vec<Chunk>> {
    let mut chunks = Vec::new();
    for (tensor, planned) in tensors.iter().enumerate() {
        let rows = planned.rows();
        let step = (CHUNK_ELEMENTS / planned.row_len().max(1)).max(1);
        let mut first = 0;
        while first < rows {
            let end = rows.min(first + step);
            chunks.push(Chunk { tensor, rows: first..end });
            first = end;
        }
    }
    Ok(chunks)
}

/// Keeps workers from running too far ahead of the writer.
struct Gate {
    ahead: usize,
    /// Chunks written; `None` when nothing more will be.
    written: Mutex<Option<usize>>,
    moved: Condvar,
}

impl Gate {
    fn new(ahead: usize) -> Self {
        Self { ahead, written: Mutex::new(Some(0)), moved: Condvar::new() }
    }

    /// Waits until chunk `index` may be worked on; false when the work is over.
    fn wait(&self, index: usize) -> bool {
        let mut written = self.written.lock().expect("no holder panics");
        loop {
            match *written {
                None => return false,
                Some(n) if index < n + self.ahead => return true,
                Some(_) => written = self.moved.wait(written).expect("no holder panics"),
            }
        }
    }

    fn advance(&self, chunks: usize) {
        *self.written.lock().expect("no holder panics") = Some(chunks);
        self.moved.notify_all();
    }

    fn close(&self) {
        *self.written.lock().expect("no holder panics") = None;
        self.moved.notify_all();
    }
}

type Finished = (usize, Result<Vec<u8>>);

fn work(
    tensors: &[PlannedTensor],
    chunks: &[Chunk],
    next: &AtomicUsize,
    gate: &Gate,
    cancel: &Cancel,
    sender: SyncSender<Finished>,
) {
    let mut buffers = Buffers::default();
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(chunk) = chunks.get(index) else { return };
        if !gate.wait(index) || cancel.is_cancelled() {
            return;
        }
        let encoded = encode(&tensors[chunk.tensor], chunk.rows.clone(), &mut buffers);
        if sender.send((index, encoded)).is_err() {
            return;
        }
    }
}

fn write_in_order(
    tensors: &[PlannedTensor],
    chunks: &[Chunk],
    receiver: Receiver<Finished>,
    gate: &Gate,
    sink: &mut dyn Sink,
    progress: &mut dyn FnMut(Progress),
    cancel: &Cancel,
) -> Result<()> {
    let bytes = tensors.iter().map(PlannedTensor::bytes).sum::<Result<u64>>()?;
    let mut early = BTreeMap::new();
    let mut bytes_done = 0;
    for (index, chunk) in chunks.iter().enumerate() {
        let data = loop {
            cancel.check()?;
            if let Some(data) = early.remove(&index) {
                break data;
            }
            // Workers stop early only when told to.
            let (other, data) = receiver.recv().map_err(|_| ConvertError::Cancelled)?;
            early.insert(other, data?);
        };
        let data: Vec<u8> = data;
        sink.write(&data)?;
        gate.advance(index + 1);
        let tensor = &tensors[chunk.tensor];
        let complete = chunk.rows.end == tensor.rows();
        if complete {
            sink.end_tensor()?;
        }
        bytes_done += data.len() as u64;
        let tensors_done = chunk.tensor + usize::from(complete);
        progress(Progress { tensor: &tensor.name, tensors_done, tensors: tensors.len(), bytes_done, bytes });
    }
    cancel.check()
}

/// A worker's memory, reused from chunk to chunk.
#[derive(Default)]
struct Buffers {
    scratch: Vec<u8>,
    values: Vec<f32>,
}

fn encode(tensor: &PlannedTensor, rows: Range<u64>, buffers: &mut Buffers) -> Result<Vec<u8>> {
    let row_bytes = tensor.row_bytes()?;
    let elements = match &tensor.source {
        Source::Elements(elements) => elements,
        Source::Blocks(blocks) => {
            let mut out = Vec::with_capacity(((rows.end - rows.start) * row_bytes) as usize);
            blocks.rows(rows.start, rows.end - rows.start, &mut out);
            return Ok(out);
        }
        Source::Bytes(bytes) => {
            let range = (rows.start * row_bytes) as usize..(rows.end * row_bytes) as usize;
            return Ok(bytes[range].to_vec());
        }
    };
    let row_len = tensor.row_len();
    buffers.values.resize(((rows.end - rows.start) * row_len) as usize, 0.0);
    elements.read(rows.start * row_len, &mut buffers.values, &mut buffers.scratch)?;
    let mut out = Vec::with_capacity(((rows.end - rows.start) * row_bytes) as usize);
    // Each matrix of a stack has its own importance weights.
    let mut first = rows.start;
    let mut values = buffers.values.as_slice();
    while first < rows.end {
        let matrix = first / tensor.rows_per_matrix();
        let end = rows.end.min((matrix + 1) * tensor.rows_per_matrix());
        let (part, rest) = values.split_at(((end - first) * row_len) as usize);
        let columns = (matrix * row_len) as usize..((matrix + 1) * row_len) as usize;
        let importance = tensor.importance.and_then(|all| all.get(columns));
        block::quantize(tensor.ty, part, row_len as usize, importance, &mut out)
            .map_err(|e| ConvertError::Tensor { name: tensor.name.clone(), problem: e.to_string() })?;
        (first, values) = (end, rest);
    }
    Ok(out)
}
