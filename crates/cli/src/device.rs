//! The device that a model runs on.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use lapidary_backend::{Backend, KvFormat, Profiled};
use lapidary_cpu::{ActivationMode, CpuBackend, CpuConfig};
use lapidary_cuda::cache::ProgramCache;
use lapidary_cuda::{CudaBackend, CudaConfig, CudaError};

use crate::args::{ActivationsArg, RunArgs};

/// What the commands ask of a backend beside its operations.
pub trait Device: Backend {
    /// Bytes a second that the device reads (or copies, both directions counted) in its memory, measured.
    fn bandwidth(&self) -> Result<f64>;

    /// The cache format where none is asked for: the smallest without measurable loss that is not slower than f16.
    const PREFERRED_KV: KvFormat;

    /// Bytes free in the device's own memory; `None` for the memory of the machine.
    fn free_memory(&self) -> Option<u64>;
}

impl Device for CpuBackend {
    const PREFERRED_KV: KvFormat = KvFormat::Tq8;

    fn bandwidth(&self) -> Result<f64> {
        Ok(self.read_bandwidth())
    }

    fn free_memory(&self) -> Option<u64> {
        None
    }
}

impl Device for CudaBackend {
    const PREFERRED_KV: KvFormat = KvFormat::F16;

    fn bandwidth(&self) -> Result<f64> {
        Ok(self.copy_bandwidth()?)
    }

    fn free_memory(&self) -> Option<u64> {
        self.free_bytes().ok()
    }
}

impl<B: Device> Device for Profiled<B> {
    const PREFERRED_KV: KvFormat = B::PREFERRED_KV;

    fn bandwidth(&self) -> Result<f64> {
        self.inner().bandwidth()
    }

    fn free_memory(&self) -> Option<u64> {
        self.inner().free_memory()
    }
}

/// An opened device.
pub enum Opened {
    Cpu(Arc<CpuBackend>),
    Cuda(Arc<CudaBackend>),
}

/// Opens the device that the flags name and evaluates an expression with its backend, whichever that is.
macro_rules! on_device {
    ($run:expr, $backend:ident => $body:expr) => {
        match $crate::device::open($run)? {
            $crate::device::Opened::Cpu($backend) => $body,
            $crate::device::Opened::Cuda($backend) => $body,
        }
    };
}
pub(crate) use on_device;

/// Opens the device that the flags name. `auto` takes the first GPU that works, and says so.
pub fn open(run: &RunArgs) -> Result<Opened> {
    match run.device.as_str() {
        "cpu" => Ok(cpu(run)),
        "auto" => match cuda(0) {
            Ok(backend) => {
                eprintln!("device: {}", backend.name());
                Ok(Opened::Cuda(Arc::new(backend)))
            }
            Err(CudaError::NoDriver) => Ok(cpu(run)),
            Err(reason) => {
                eprintln!("device: cpu, because {reason}");
                Ok(cpu(run))
            }
        },
        name => {
            let index = match name.strip_prefix("cuda") {
                Some("") => Some(0),
                Some(rest) => rest.strip_prefix(':').and_then(|n| n.parse().ok()),
                None => None,
            };
            let Some(index) = index else {
                bail!("--device {name}: no such device; use auto, cpu, cuda or cuda:N");
            };
            let backend = cuda(index).with_context(|| format!("--device {name}"))?;
            Ok(Opened::Cuda(Arc::new(backend)))
        }
    }
}

fn cpu(run: &RunArgs) -> Opened {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    Opened::Cpu(Arc::new(CpuBackend::new(CpuConfig {
        threads: run.threads.map_or(cores, usize::from),
        activations: match run.activations {
            ActivationsArg::Q8 => ActivationMode::Q8,
            ActivationsArg::F32 => ActivationMode::F32,
        },
        ..CpuConfig::default()
    })))
}

/// Opens a GPU. Its activations are always `f32`.
fn cuda(device: usize) -> Result<CudaBackend, CudaError> {
    let program_cache =
        cache_folder().map(|folder| ProgramCache::new(folder.join("lapidary").join("kernels")));
    CudaBackend::new(CudaConfig { device, program_cache })
}

/// Where programs keep what they can make again, by the XDG base directory specification; `None` where no home is known.
fn cache_folder() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
}
