//! Launches that wait to be sent to the device.
//!
//! A step of the model enqueues the same launches as the step before, with the same arguments: what differs between
//! steps (tokens, positions, addresses of the cache) lies in buffers. Launches are therefore collected until somebody
//! waits for results. A long list that came twice running is recorded as a CUDA graph, and one that is recorded is
//! replayed by one call.

use std::ffi::c_void;

use bytemuck::Pod;
use cudarc::driver::result::{graph, stream};
use cudarc::driver::{DriverError, sys};

/// Shortest list that is worth a graph.
const SHORTEST_GRAPH: usize = 32;
/// Graphs that are kept.
const MAX_GRAPHS: usize = 8;
/// Most arguments of a kernel.
const MAX_ARGUMENTS: usize = 16;

/// A kernel that is loaded, for as long as its context lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function(pub(crate) sys::CUfunction);

// SAFETY: a handle of the driver, which may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// Grid and block of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub grid: (u32, u32, u32),
    pub threads: u32,
    pub shared_bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Launch {
    function: Function,
    shape: Shape,
    /// Its first argument in [`List::arguments`].
    first_argument: u32,
    n_arguments: u32,
}

/// Launches and their arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct List {
    launches: Vec<Launch>,
    /// Where each argument begins in `words`.
    arguments: Vec<u32>,
    words: Vec<u64>,
}

/// An argument passed by value.
pub(crate) trait Argument: Pod {}
impl<T: Pod> Argument for T {}

impl List {
    fn clear(&mut self) {
        self.launches.clear();
        self.arguments.clear();
        self.words.clear();
    }

    fn begin(&mut self, function: Function, shape: Shape) {
        let first_argument = self.arguments.len() as u32;
        self.launches.push(Launch { function, shape, first_argument, n_arguments: 0 });
    }

    fn argument<T: Argument>(&mut self, value: &T) {
        self.arguments.push(self.words.len() as u32);
        let bytes = bytemuck::bytes_of(value);
        for word in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            self.words.push(u64::from_ne_bytes(padded));
        }
        let launch = self.launches.last_mut().expect("a launch was begun");
        launch.n_arguments += 1;
        assert!(launch.n_arguments as usize <= MAX_ARGUMENTS);
    }

    /// Sends all launches to a stream.
    ///
    /// # Safety
    /// The arguments must be those of the kernels, and what they point to must live until the work is done.
    unsafe fn send(&self, stream: sys::CUstream, overlap: bool) -> Result<(), DriverError> {
        for launch in &self.launches {
            let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGUMENTS];
            let first = launch.first_argument as usize;
            let offsets = &self.arguments[first..first + launch.n_arguments as usize];
            for (pointer, &offset) in pointers.iter_mut().zip(offsets) {
                // The driver reads the argument and does not write to it.
                *pointer = self.words[offset as usize..].as_ptr().cast_mut().cast();
            }
            let mut attribute = sys::CUlaunchAttribute {
                id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                pad: [0; 4],
                value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            };
            let Shape { grid, threads, shared_bytes } = launch.shape;
            let config = sys::CUlaunchConfig {
                gridDimX: grid.0,
                gridDimY: grid.1,
                gridDimZ: grid.2,
                blockDimX: threads,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: shared_bytes,
                hStream: stream,
                attrs: &mut attribute,
                numAttrs: u32::from(overlap),
            };
            // SAFETY: by this function's contract; configuration and pointers outlive the call.
            unsafe {
                sys::cuLaunchKernelEx(&config, launch.function.0, pointers.as_mut_ptr(), std::ptr::null_mut())
            }
            .result()?;
        }
        Ok(())
    }
}

/// A list recorded as a graph.
struct Graph {
    list: List,
    executable: sys::CUgraphExec,
}

// SAFETY: a handle of the driver, used under the queue's lock.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        // A graph that cannot be destroyed is only leaked.
        // SAFETY: the handle is not used afterwards; the driver finishes launches in flight first.
        let _ = unsafe { graph::exec_destroy(self.executable) };
    }
}

/// Launches that wait, and the graphs of lists that came before.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: List,
    previous: List,
    /// The one used last comes last.
    graphs: Vec<Graph>,
    /// Whether the driver refused to record one.
    no_graphs: bool,
}

impl Queue {
    /// Enqueues a launch; its [arguments](Self::argument) follow.
    pub(crate) fn begin(&mut self, function: Function, shape: Shape) {
        self.waiting.begin(function, shape);
    }

    /// An argument of the launch begun last.
    pub(crate) fn argument<T: Argument>(&mut self, value: &T) {
        self.waiting.argument(value);
    }

    /// Sends what waits. With `overlap`, a kernel may start before the one before it has ended, and waits itself.
    ///
    /// # Safety
    /// The context is current; the arguments are those of the kernels, and what they point to lives until the work is done.
    pub(crate) unsafe fn send(&mut self, stream: sys::CUstream, overlap: bool) -> Result<(), DriverError> {
        if self.waiting.launches.is_empty() {
            return Ok(());
        }
        // SAFETY: by this function's contract.
        let result = unsafe { self.send_waiting(stream, overlap) };
        self.waiting.clear();
        result
    }

    /// # Safety
    /// As [`send`](Self::send).
    unsafe fn send_waiting(&mut self, stream: sys::CUstream, overlap: bool) -> Result<(), DriverError> {
        if self.waiting.launches.len() < SHORTEST_GRAPH {
            // SAFETY: by this function's contract.
            return unsafe { self.waiting.send(stream, overlap) };
        }
        if let Some(at) = self.graphs.iter().position(|g| g.list == self.waiting) {
            let graph = self.graphs.remove(at);
            // SAFETY: by this function's contract; the executable lives.
            let result = unsafe { graph::launch(graph.executable, stream) };
            self.graphs.push(graph);
            return result;
        }
        if self.no_graphs || self.previous != self.waiting {
            std::mem::swap(&mut self.previous, &mut self.waiting);
            // SAFETY: by this function's contract.
            return unsafe { self.previous.send(stream, overlap) };
        }
        // SAFETY: by this function's contract.
        let Ok(graph) = (unsafe { record(self.waiting.clone(), stream, overlap) }) else {
            // Old drivers cannot record overlapping launches; without a graph they only take longer.
            self.no_graphs = true;
            // SAFETY: by this function's contract.
            return unsafe { self.waiting.send(stream, overlap) };
        };
        if self.graphs.len() == MAX_GRAPHS {
            self.graphs.remove(0);
        }
        // SAFETY: by this function's contract; the executable lives.
        let result = unsafe { graph::launch(graph.executable, stream) };
        self.graphs.push(graph);
        result
    }
}

/// Records a list as a graph.
///
/// # Safety
/// As [`Queue::send`].
unsafe fn record(list: List, stream: sys::CUstream, overlap: bool) -> Result<Graph, DriverError> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is valid; the capture ends below on every path.
    unsafe { stream::begin_capture(stream, mode) }?;
    // SAFETY: by this function's contract.
    let sent = unsafe { list.send(stream, overlap) };
    // SAFETY: the capture was begun above.
    let recorded = unsafe { stream::end_capture(stream) }?;
    // SAFETY: the graph was made above.
    let executable =
        sent.and_then(|()| unsafe { graph::instantiate(recorded, sys::CUgraphInstantiate_flags(0)) });
    // SAFETY: the executable does not need the graph it was made of.
    unsafe { graph::destroy(recorded) }?;
    Ok(Graph { list, executable: executable? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_differ_in_functions_shapes_and_arguments() {
        let shape = Shape { grid: (1, 2, 3), threads: 32, shared_bytes: 0 };
        let list = |address: usize, shape: Shape, values: &[u32]| {
            let mut list = List::default();
            list.begin(Function(std::ptr::without_provenance_mut(address)), shape);
            list.argument(&1.5f32);
            values.iter().for_each(|v| list.argument(v));
            list.argument(&[7u32; 5]);
            list
        };
        let first = list(8, shape, &[1, 2]);
        assert_eq!(first, list(8, shape, &[1, 2]));
        assert_eq!(first.arguments, [0, 1, 2, 3]);
        assert_eq!(first.words.len(), 6);
        for other in [
            list(16, shape, &[1, 2]),
            list(8, Shape { threads: 64, ..shape }, &[1, 2]),
            list(8, shape, &[1, 3]),
            list(8, shape, &[1]),
        ] {
            assert_ne!(first, other);
        }
    }
}
