//! Memory of a device.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr, DriverError, ValidAsZeroBits, sys};
use lapidary_backend::{BackendError, Result};

use crate::arguments::Address;
use crate::device::Device;

/// Elements on the device. Freed in the order of the stream, so that work enqueued before may still use them.
pub(crate) struct Memory<T> {
    device: Arc<Device>,
    slice: CudaSlice<T>,
}

impl<T: DeviceRepr + ValidAsZeroBits> Memory<T> {
    /// `len` zeros.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] naming `what`.
    pub(crate) fn zeroed(device: &Arc<Device>, len: usize, what: &str) -> Result<Self> {
        let failed = |e: DriverError| out_of_memory(device, e, what, len.saturating_mul(size_of::<T>()));
        device
            .stream()
            .alloc_zeros(len.max(1))
            .map(|slice| Self { device: Arc::clone(device), slice })
            .map_err(failed)
    }

    /// A copy of `data`.
    pub(crate) fn copied(device: &Arc<Device>, data: &[T], what: &str) -> Result<Self> {
        let failed = |e: DriverError| out_of_memory(device, e, what, size_of_val(data));
        // SAFETY: the memory is written by the copy below before anything reads it.
        let slice = unsafe { device.stream().alloc(data.len().max(1)) }.map_err(failed)?;
        let mut memory = Self { device: Arc::clone(device), slice };
        memory.write(device, data, 0)?;
        Ok(memory)
    }
}

impl<T: DeviceRepr> Memory<T> {
    /// Elements.
    pub(crate) fn len(&self) -> usize {
        self.slice.len()
    }

    /// Where it begins.
    pub(crate) fn address(&self, device: &Device) -> Address {
        self.slice.device_ptr(device.stream()).0
    }

    /// Where element `index` is.
    pub(crate) fn address_of(&self, device: &Device, index: usize) -> Address {
        assert!(index <= self.len(), "element {index} of {}", self.len());
        self.address(device) + (index * size_of::<T>()) as u64
    }

    /// Enqueues a copy of `data` to `offset`.
    pub(crate) fn write(&mut self, device: &Device, data: &[T], offset: usize) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        device.send()?;
        let mut target = self.slice.slice_mut(offset..offset + data.len());
        device.stream().memcpy_htod(data, &mut target).map_err(|e| device.driver_error(e))
    }

    /// Enqueues a copy of all of `from`.
    pub(crate) fn copy_from(&mut self, device: &Device, from: &Self) -> Result<()> {
        device.send()?;
        device.stream().memcpy_dtod(&from.slice, &mut self.slice).map_err(|e| device.driver_error(e))
    }

    /// Waits for what was enqueued and reads from `offset`.
    pub(crate) fn read(&self, device: &Device, offset: usize, out: &mut [T]) -> Result<()> {
        device.send()?;
        if !out.is_empty() {
            let source = self.slice.slice(offset..offset + out.len());
            device.stream().memcpy_dtoh(&source, out).map_err(|e| device.driver_error(e))?;
        }
        device.synchronize()
    }
}

impl<T> Drop for Memory<T> {
    fn drop(&mut self) {
        // Launches that wait may use the memory; it is freed behind them. An error comes back at the next wait.
        let _ = self.device.send();
    }
}

fn out_of_memory(device: &Device, error: DriverError, what: &str, needed: usize) -> BackendError {
    match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            BackendError::OutOfMemory { device: device.name(), what: what.to_owned(), needed }
        }
        _ => device.driver_error(error),
    }
}

/// Memory that grows when more is asked for.
pub(crate) struct Scratch<T> {
    memory: Option<Memory<T>>,
}

impl<T> Default for Scratch<T> {
    fn default() -> Self {
        Self { memory: None }
    }
}

impl<T: DeviceRepr + ValidAsZeroBits> Scratch<T> {
    /// At least `len` elements of unspecified contents.
    pub(crate) fn reserve(&mut self, device: &Arc<Device>, len: usize, what: &str) -> Result<&mut Memory<T>> {
        if self.memory.as_ref().is_none_or(|m| m.len() < len) {
            // The old goes first, so that both never exist together.
            self.memory = None;
            self.memory = Some(Memory::zeroed(device, len.next_power_of_two(), what)?);
        }
        Ok(self.memory.as_mut().expect("made above"))
    }

    /// What was reserved last.
    pub(crate) fn get(&self) -> Option<&Memory<T>> {
        self.memory.as_ref()
    }
}

/// Row-major `f32` memory of a CUDA device.
pub struct CudaBuffer {
    pub(crate) memory: Memory<f32>,
    pub(crate) len: usize,
}
