//! Copies from a device to host memory for which the host does not wait.

use std::ffi::c_int;

use tch::{Device, Kind, TchError, Tensor};

use crate::error::{Error, Result, check};
use crate::ffi;
use crate::stream::{Event, Stream};
use crate::tensors::made;

/// A buffer in host memory for copies from a device. For a GPU the memory is pinned, and the copies
/// run on a separate stream.
#[derive(Debug)]
pub struct HostCopy {
    /// Bytes `[length]`. No other handle of this tensor exists.
    memory: Tensor,
    length: usize,
    device: Device,
    stream: Stream,
    copied: Option<Event>,
    /// Whether a copy was launched without an event that shows its completion.
    is_torn: bool,
}

impl HostCopy {
    /// Allocates memory for `length` bytes of a device.
    ///
    /// # Errors
    /// There is too little (pinned) memory, or the device has failed or does not exist.
    pub fn new(length: usize, device: Device) -> Result<Self> {
        let size = i64::try_from(length);
        let size = size.map_err(|_| Error::refused(format!("a copy of {length} bytes")))?;
        let pinned = c_int::from(device.is_cuda());
        // SAFETY: takes numbers, `out` valid for a write.
        let memory = made(|out| unsafe { ffi::rh_host_bytes(size, pinned, out) })?;
        Ok(Self {
            memory,
            length,
            device,
            stream: Stream::new(device)?,
            copied: None,
            is_torn: false,
        })
    }

    /// Size of the buffer in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether the buffer has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Starts a copy. `gather` writes the bytes to a tensor `[length]` on the device, in the order
    /// of the thread's current stream; later work in that stream does not change the copy. Waits
    /// for an earlier copy first.
    ///
    /// # Errors
    /// `gather` fails, or the device has too little memory for the tensor, or the device has
    /// failed.
    pub fn begin(
        &mut self,
        gather: impl FnOnce(&Tensor) -> std::result::Result<(), TchError>,
    ) -> Result<()> {
        self.bytes()?;
        let gathered = Tensor::f_empty(self.memory.size(), (Kind::Uint8, self.device))?;
        gather(&gathered)?;
        let is_gathered = Event::record(self.device)?;
        let guard = self.stream.enter()?;
        is_gathered.block()?;
        // So the allocator does not reuse the memory of `gathered` before the copy is complete.
        self.stream.uses(&gathered)?;
        self.is_torn = true;
        // SAFETY: both tensors are live. `memory` belongs to this value, which is borrowed mutably,
        // and is not read before the copy is complete.
        check(unsafe { ffi::rh_copy_later(self.memory.as_mut_ptr(), gathered.as_ptr()) })?;
        self.copied = Some(Event::record(self.device)?);
        self.is_torn = false;
        drop(guard);
        Ok(())
    }

    /// Waits until the copy is complete, and returns its bytes. Before the first copy they are 0.
    ///
    /// # Errors
    /// The device has failed since or during the launch of the copy.
    pub fn bytes(&mut self) -> Result<&[u8]> {
        if self.is_torn {
            let words =
                "the device failed after launching a copy to host memory, so its end is unknown";
            return Err(Error::refused(words));
        }
        if let Some(copied) = &self.copied {
            copied.wait()?;
            self.copied = None;
        }
        if self.length == 0 {
            return Ok(&[]);
        }
        let start = self.memory.data_ptr().cast::<u8>().cast_const();
        // SAFETY: the memory has `length` initialized bytes, and no copy to it is running. No other
        // handle of it exists, and a new copy needs this value mutably.
        Ok(unsafe { std::slice::from_raw_parts(start, self.length) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_keeps_its_bytes_while_their_source_changes() {
        let mut copy = HostCopy::new(3, Device::Cpu).unwrap();
        assert_eq!((copy.len(), copy.is_empty()), (3, false));
        assert_eq!(copy.bytes().unwrap(), [0, 0, 0]);
        let mut source = Tensor::from_slice(&[1_u8, 2, 3]);
        let gather = |gathered: &Tensor| gathered.shallow_clone().f_copy_(&source);
        copy.begin(gather).unwrap();
        let _ = source.fill_(9);
        assert_eq!(copy.bytes().unwrap(), [1, 2, 3]);
        copy.begin(|gathered| gathered.shallow_clone().f_copy_(&source))
            .unwrap();
        assert_eq!(copy.bytes().unwrap(), [9, 9, 9]);
    }

    #[test]
    fn failed_gather_is_an_error() {
        let mut copy = HostCopy::new(3, Device::Cpu).unwrap();
        let four = Tensor::from_slice(&[1_u8, 2, 3, 4]);
        let gather = |gathered: &Tensor| gathered.shallow_clone().f_copy_(&four);
        assert!(copy.begin(gather).is_err());
        assert_eq!(copy.bytes().unwrap(), [0, 0, 0]);
    }

    #[test]
    fn copy_of_nothing_is_empty() {
        let mut copy = HostCopy::new(0, Device::Cpu).unwrap();
        copy.begin(|_| Ok(())).unwrap();
        assert!(copy.is_empty() && copy.bytes().unwrap().is_empty());
    }
}
