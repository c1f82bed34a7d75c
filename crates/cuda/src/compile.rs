//! Machine code of a program, by NVRTC.

use std::ffi::CString;

use cudarc::nvrtc::{result, sys};

use crate::error::CudaError;
use crate::programs::Program;

/// Whether the run-time compiler can be loaded.
pub fn is_present() -> bool {
    // SAFETY: loads a shared library whose initialisers have no effect on this program.
    unsafe { sys::is_culib_present() }
}

/// Version of the run-time compiler.
///
/// # Errors
/// [`CudaError::NoCompiler`].
pub fn version() -> Result<(i32, i32), CudaError> {
    if !is_present() {
        return Err(CudaError::NoCompiler);
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are places for an integer.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(|_| CudaError::NoCompiler)?;
    Ok((major, minor))
}

/// Compiles a program to a cubin for `arch` (`sm_90`).
///
/// # Errors
/// [`CudaError::NoCompiler`], or [`CudaError::Compile`] with the compiler's messages.
pub fn compile(program: Program, arch: &str) -> Result<Vec<u8>, CudaError> {
    if !is_present() {
        return Err(CudaError::NoCompiler);
    }
    let failed = |log: String| CudaError::Compile { program: program.name(), arch: arch.to_owned(), log };
    let source = CString::new(program.source()).map_err(|e| failed(e.to_string()))?;
    let name = CString::new(program.name()).map_err(|e| failed(e.to_string()))?;
    let handle = Handle(result::create_program(&source, Some(&name)).map_err(|e| failed(e.to_string()))?);
    // SAFETY: the handle is that of a program made above, which lives to the end of this function.
    let compiled = unsafe { result::compile_program(handle.0, &program.options(arch)) };
    if let Err(error) = compiled {
        return Err(failed(format!("{error}\n{}", handle.log())));
    }
    handle.cubin().map_err(|e| failed(e.to_string()))
}

/// A program of the compiler, destroyed when dropped.
struct Handle(sys::nvrtcProgram);

impl Handle {
    fn log(&self) -> String {
        // SAFETY: the program lives.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        // C characters are signed on some processors only.
        let bytes: Vec<u8> = log.into_iter().map(|c| c.to_ne_bytes()[0]).take_while(|&c| c != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, result::NvrtcError> {
        let mut size = 0;
        // SAFETY: the program lives, and `size` is a place for the size.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &mut size) }.result()?;
        let mut cubin = vec![0u8; size];
        // SAFETY: the buffer is as long as the compiler said.
        unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) }.result()?;
        Ok(cubin)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A program that cannot be destroyed is only leaked.
        // SAFETY: the program lives and is not used afterwards.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
