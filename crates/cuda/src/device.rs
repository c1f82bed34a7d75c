//! A device: its context, its stream, and the programs loaded on it.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::result::module;
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};
use cudarc::driver::{CudaContext, CudaStream, DriverError};
use lapidary_backend::BackendError;

use crate::cache::{Key, ProgramCache};
use crate::compile;
use crate::error::{CudaError, describe};
use crate::programs::Program;
use crate::queue::{Function, Queue, Shape};

/// Least compute capability, major part.
const MIN_MAJOR: i32 = 8;

/// A device that the driver knows.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its number.
    pub index: usize,
    /// The vendor's name.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Bytes of memory.
    pub memory: usize,
}

/// The devices of this machine.
///
/// # Errors
/// [`CudaError::NoDriver`] or [`CudaError::NoDevices`].
pub fn devices() -> Result<Vec<Found>, CudaError> {
    // SAFETY: loads a shared library whose initialisers have no effect on this program.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let count = CudaContext::device_count().map_err(|e| CudaError::NoDevices(describe(e)))?;
    (0..count.max(0) as usize).map(found).collect()
}

fn found(index: usize) -> Result<Found, CudaError> {
    use cudarc::driver::result::device;
    let failed = |e| CudaError::driver(format!("asking for CUDA device {index}"))(e);
    let handle = device::get(index as i32).map_err(failed)?;
    // SAFETY: the handle is one that the driver gave.
    let attribute = |which| unsafe { device::get_attribute(handle, which) }.map_err(failed);
    let capability = (
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    // SAFETY: as above.
    let memory = unsafe { device::total_mem(handle) }.map_err(failed)?;
    Ok(Found { index, name: device::get_name(handle).map_err(failed)?, capability, memory })
}

/// The functions of a loaded program, in the order of [`Program::kernels`].
pub(crate) struct Kernels {
    program: Program,
    functions: Vec<Function>,
}

impl Kernels {
    /// A function by its name.
    pub(crate) fn get(&self, name: &str) -> Function {
        let at = self.program.kernels().iter().position(|&n| n == name);
        self.functions[at.expect("a kernel of this program")]
    }
}

/// An opened device.
pub(crate) struct Device {
    /// Dropped before the context that its graphs belong to.
    queue: Mutex<Queue>,
    found: Found,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    cache: Option<ProgramCache>,
    compiler: OnceLock<(i32, i32)>,
    programs: Mutex<HashMap<Program, Arc<Kernels>>>,
}

impl Device {
    /// Opens device `index`.
    pub(crate) fn open(index: usize, cache: Option<ProgramCache>) -> Result<Self, CudaError> {
        let mut all = devices()?;
        if index >= all.len() {
            return Err(CudaError::NoSuchDevice { index, count: all.len() });
        }
        let found = all.swap_remove(index);
        let (major, minor) = found.capability;
        if major < MIN_MAJOR {
            return Err(CudaError::TooOld { name: found.name, major, minor });
        }
        let opening = || format!("opening {}", found.name);
        let context = CudaContext::new(index).map_err(|e| CudaError::driver(opening())(e))?;
        // SAFETY: everything is enqueued on one stream, so that no buffer needs events to order its uses.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(|e| CudaError::driver(opening())(e))?;
        Ok(Self {
            found,
            context,
            stream,
            cache,
            compiler: OnceLock::new(),
            programs: Mutex::default(),
            queue: Mutex::default(),
        })
    }

    pub(crate) fn found(&self) -> &Found {
        &self.found
    }

    /// The device in words.
    pub(crate) fn name(&self) -> String {
        format!("cuda:{} ({})", self.found.index, self.found.name)
    }

    /// The stream that everything is enqueued on.
    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Enqueues a launch whose arguments `fill` adds.
    pub(crate) fn enqueue(&self, function: Function, shape: Shape, fill: impl FnOnce(&mut Queue)) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.begin(function, shape);
        fill(&mut queue);
    }

    /// Sends the launches that wait to the device. To be called before memory that they may use is written, read or freed.
    pub(crate) fn send(&self) -> Result<(), BackendError> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.context.bind_to_thread().map_err(|e| self.driver_error(e))?;
        // Kernels wait for the one before them from compute capability 9.0 on.
        let overlap = self.found.capability.0 >= 9;
        // SAFETY: the context is current. Arguments are those of the kernels by the contract of `launch!`; memory that they
        // point to is freed in the order of the stream, after `send`.
        unsafe { queue.send(self.stream.cu_stream(), overlap) }.map_err(|e| self.driver_error(e))
    }

    /// Sends what waits, and waits for everything.
    pub(crate) fn synchronize(&self) -> Result<(), BackendError> {
        self.send()?;
        self.stream.synchronize().map_err(|e| self.driver_error(e))
    }

    /// Bytes of memory that are free.
    pub(crate) fn free_bytes(&self) -> Result<u64, BackendError> {
        let (free, _) = self.context.mem_get_info().map_err(|e| self.driver_error(e))?;
        Ok(free as u64)
    }

    /// The architecture to compile for.
    fn arch(&self) -> String {
        let (major, minor) = self.found.capability;
        format!("sm_{major}{minor}")
    }

    /// A program, compiled and loaded when it is asked for first.
    pub(crate) fn program(&self, program: Program) -> Result<Arc<Kernels>, BackendError> {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernels) = programs.get(&program) {
            return Ok(Arc::clone(kernels));
        }
        let kernels = Arc::new(self.load(program).map_err(|e| self.failed(e.to_string()))?);
        programs.insert(program, Arc::clone(&kernels));
        Ok(kernels)
    }

    fn load(&self, program: Program) -> Result<Kernels, CudaError> {
        let compiler = match self.compiler.get() {
            Some(&version) => version,
            None => *self.compiler.get_or_init({
                let version = compile::version()?;
                move || version
            }),
        };
        let arch = self.arch();
        let key = Key::new(program, &arch, compiler);
        let stored = self.cache.as_ref().and_then(|cache| cache.load(&key));
        if let Some(kernels) = stored.and_then(|code| self.functions(program, code).ok()) {
            return Ok(kernels);
        }
        let code = compile::compile(program, &arch)?;
        if let Some(cache) = &self.cache {
            // A cache that cannot be written to costs time, not results.
            let _ = cache.store(&key, &code);
        }
        self.functions(program, code)
            .map_err(CudaError::driver(format!("loading the program {}", program.name())))
    }

    fn functions(&self, program: Program, code: Vec<u8>) -> Result<Kernels, DriverError> {
        self.context.bind_to_thread()?;
        // The module stays loaded for as long as the context lives.
        // SAFETY: the code is a whole cubin, made by the compiler or checked against its hash.
        let module = unsafe { module::load_data(code.as_ptr().cast()) }?;
        let function = |name: &&str| {
            let name = CString::new(*name).expect("a name without zeros");
            // SAFETY: the module was loaded above.
            unsafe { module::get_function(module, name) }.map(Function)
        };
        Ok(Kernels { program, functions: program.kernels().iter().map(function).collect::<Result<_, _>>()? })
    }

    /// An error of this device.
    pub(crate) fn failed(&self, message: impl Into<String>) -> BackendError {
        BackendError::Device { device: self.name(), message: message.into() }
    }

    /// The driver's error as this device's.
    pub(crate) fn driver_error(&self, error: DriverError) -> BackendError {
        self.failed(describe(error))
    }

    /// What the device cannot do.
    pub(crate) fn unsupported(&self, what: impl Into<String>) -> BackendError {
        BackendError::Unsupported { device: self.name(), what: what.into() }
    }
}

/// Enqueues a kernel: device, function, grid, threads a block and bytes of shared memory; then its arguments, which must be
/// those of the kernel in its order and types. Addresses among them must be of [`Memory`](crate::memory::Memory) of this
/// device, as long as the shapes say; that is the caller's responsibility by the trait's contract, and checked by the
/// operations where it is cheap.
macro_rules! launch {
    ($device:expr, $kernel:expr, $grid:expr, $threads:expr, $shared:expr; $($argument:expr),+ $(,)?) => {{
        let (x, y, z): (usize, usize, usize) = $grid;
        let shape = $crate::queue::Shape {
            grid: (x as u32, y as u32, z as u32),
            threads: $threads as u32,
            shared_bytes: $shared as u32,
        };
        $device.enqueue($kernel, shape, |queue| {
            $(queue.argument(&$argument);)+
        });
    }};
}
pub(crate) use launch;
