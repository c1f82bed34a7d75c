//! Why a CUDA device cannot be used.

/// Why a device cannot be opened or its kernels not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No driver library.
    #[error("no NVIDIA driver is installed (libcuda.so.1 is not found); install one, or use --device cpu")]
    NoDriver,
    /// No run-time compiler.
    #[error(
        "the CUDA run-time compiler is not found (libnvrtc.so); install the CUDA toolkit 12 or 13, or the Python package \
         nvidia-cuda-nvrtc, and put its folder on LD_LIBRARY_PATH; or use --device cpu"
    )]
    NoCompiler,
    /// A driver that knows none of the devices here.
    #[error("the NVIDIA driver finds no usable device: {0}; check nvidia-smi, or use --device cpu")]
    NoDevices(String),
    /// A device number beyond those there are.
    #[error("there is no CUDA device {index}; there are {count}, numbered from 0")]
    NoSuchDevice {
        /// The number asked for.
        index: usize,
        /// Devices there are.
        count: usize,
    },
    /// A GPU older than the kernels are written for.
    #[error(
        "{name} has compute capability {major}.{minor}; 8.0 (Ampere) or later is needed; use another device or --device cpu"
    )]
    TooOld {
        /// The device.
        name: String,
        /// Compute capability, major part.
        major: i32,
        /// Minor part.
        minor: i32,
    },
    /// The compiler refused a program.
    #[error("the CUDA compiler cannot make {program} for {arch}: {log}")]
    Compile {
        /// The program.
        program: String,
        /// The architecture, such as `sm_90`.
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// The driver failed.
    #[error("{doing}: the NVIDIA driver says {message}")]
    Driver {
        /// What was being done.
        doing: String,
        /// What the driver said.
        message: String,
    },
}

/// What the driver calls an error.
pub(crate) fn describe(error: cudarc::driver::DriverError) -> String {
    let text = |c: Result<&std::ffi::CStr, _>| c.map(|c| c.to_string_lossy().into_owned());
    match (text(error.error_name()), text(error.error_string())) {
        (Ok(name), Ok(words)) => format!("{name} ({words})"),
        _ => format!("{:?}", error.0),
    }
}

impl CudaError {
    /// A driver error while `doing` something.
    pub(crate) fn driver(doing: impl Into<String>) -> impl FnOnce(cudarc::driver::DriverError) -> Self {
        let doing = doing.into();
        move |error| Self::Driver { doing, message: describe(error) }
    }
}
