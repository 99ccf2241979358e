//! Streams and events of a GPU. On a CPU they have no effect, because its work is done when a call
//! returns.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::time::Duration;

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result, check};
use crate::ffi;
use crate::store::make;
use crate::tensors::made;

/// Number of times that this process has waited for a device in [`Event::wait`], [`Stream::wait`],
/// [`Agreement::wait`](crate::Agreement::wait) and [`Reducer::waited`](crate::Reducer::waited).
/// Calls on a CPU count, too, although they return at once. Waits in tch's own calls do not count:
/// on a GPU see [`watch_host_syncs`].
#[must_use]
pub fn host_syncs() -> u64 {
    // SAFETY: the call only reads a counter.
    unsafe { ffi::rh_host_syncs() }
}

/// The reaction of libtorch to calls that make the host wait for the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostSyncs {
    /// Allow such calls silently.
    Allow = 0,
    /// Print a warning on stderr.
    Warn = 1,
    /// Make the call fail.
    Refuse = 2,
}

/// Sets the reaction for the whole process, like `torch.cuda.set_sync_debug_mode`. It has no effect
/// in a build without CUDA.
///
/// # Errors
/// libtorch fails; no argument can cause this.
pub fn watch_host_syncs(mode: HostSyncs) -> Result<()> {
    let mode = mode as c_int;
    // SAFETY: the call only takes a number.
    #[cfg(feature = "nccl")]
    check(unsafe { ffi::rh_sync_debug(mode) })?;
    let _ = mode;
    Ok(())
}

/// Copies a host tensor to a device without making the host wait. A GPU receives it through pinned
/// memory, in the order of the thread's current stream. For a CPU it returns the same tensor.
///
/// # Errors
/// There is too little pinned memory, or the device has failed or does not exist.
pub fn upload(tensor: &Tensor, device: Device) -> Result<Tensor> {
    let device = index(device)?;
    if device < 0 {
        return Ok(tensor.shallow_clone());
    }
    // SAFETY: the tensor is live, `out` valid for a write.
    made(|out| unsafe { ffi::rh_upload(tensor.as_ptr(), device, out) })
}

/// Creates a tensor on a device from bytes, like [`upload`]. The bytes are copied before this
/// returns. For a GPU they are copied directly to pinned memory, which libtorch reuses for the next
/// call.
///
/// # Errors
/// The number of bytes does not match the tensor, or the same as for [`upload`].
pub fn upload_bytes(bytes: &[u8], sizes: &[i64], kind: Kind, device: Device) -> Result<Tensor> {
    let length = bytes.len();
    let is_negative = sizes.iter().any(|size| *size < 0);
    let num_elements = usize::try_from(sizes.iter().product::<i64>());
    let wanted = num_elements.map(|number| number * kind.elt_size_in_bytes());
    if is_negative || wanted != Ok(length) {
        return Err(Error::refused(format!(
            "{length} bytes for {sizes:?} of {kind:?}"
        )));
    }
    if bytes.is_empty() {
        return Ok(Tensor::f_zeros(sizes, (kind, device))?);
    }
    if !(bytes.as_ptr() as usize).is_multiple_of(kind.elt_size_in_bytes()) {
        return upload(&Tensor::f_from_data_size(bytes, sizes, kind)?, device);
    }
    let strides: Vec<i64> = (1..=sizes.len())
        .map(|next| sizes[next..].iter().product())
        .collect();
    // SAFETY: the number of bytes matches, they are aligned, and they outlive the view, to which
    // nothing writes.
    let view = unsafe { Tensor::f_from_blob(bytes.as_ptr(), sizes, &strides, kind, Device::Cpu) }?;
    if device == Device::Cpu {
        let mut own = Tensor::f_empty(sizes, (kind, Device::Cpu))?;
        own.f_copy_(&view)?;
        return Ok(own);
    }
    upload(&view, device)
}

/// The index of a GPU, or -1 for the CPU.
fn index(device: Device) -> Result<c_int> {
    match device {
        Device::Cpu => Ok(-1),
        Device::Cuda(index) => {
            c_int::try_from(index).map_err(|_| Error::refused(format!("GPU {index}")))
        }
        _ => Err(Error::refused(format!("streams of {device:?}"))),
    }
}

/// Sleep of a waiting thread between two polls.
const LOOK_INTERVAL: Duration = Duration::from_micros(50);

/// Polls until `is_so` returns true. CUDA's own wait for an event spins and takes a core from the
/// threads that decode the next batch. A pod with eight GPUs and eight cores has no spare core.
fn wait_until(mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    while !is_so()? {
        std::thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

/// A queue of work of a GPU, in addition to the initial stream of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    device: c_int,
    id: i64,
}

impl Stream {
    /// Takes a stream from libtorch's pool of 32 streams for the device.
    ///
    /// # Errors
    /// The device has failed or does not exist.
    pub fn new(device: Device) -> Result<Self> {
        let (device, mut id) = (index(device)?, 0);
        if device >= 0 {
            // SAFETY: the output is valid for a write.
            check(unsafe { ffi::rh_stream_new(device, &raw mut id) })?;
        }
        Ok(Self { device, id })
    }

    /// Makes this the current stream of the thread until the guard is dropped. Its work is not
    /// ordered with the work of other streams: see [`Event::block`].
    ///
    /// # Errors
    /// The device reports a failure.
    pub fn enter(self) -> Result<StreamGuard> {
        let mut before = 0;
        if self.device >= 0 {
            // SAFETY: the output is valid for a write.
            check(unsafe { ffi::rh_stream_exchange(self.device, self.id, &raw mut before) })?;
        }
        Ok(StreamGuard {
            device: self.device,
            before,
            of_thread: PhantomData,
        })
    }

    /// Waits until all work of the stream is done.
    ///
    /// # Errors
    /// The device reports a failure.
    pub fn wait(self) -> Result<()> {
        if self.device < 0 {
            return Ok(());
        }
        let guard = self.enter()?;
        let end = Event::record_at(self.device, false)?;
        drop(guard);
        end.wait()
    }

    /// Marks the tensor as used by this stream: when the tensor is dropped, the allocator reuses
    /// its memory only after the stream's current work. Needed for a tensor that was created on
    /// another stream.
    ///
    /// # Errors
    /// The tensor is on another device.
    pub fn uses(self, tensor: &Tensor) -> Result<()> {
        if self.device < 0 {
            return Ok(());
        }
        // SAFETY: the tensor is live.
        check(unsafe { ffi::rh_record_stream(tensor.as_ptr(), self.device, self.id) })
    }
}

/// The guard of [`Stream::enter`].
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct StreamGuard {
    device: c_int,
    before: i64,
    of_thread: PhantomData<*const ()>,
}

impl StreamGuard {
    /// The previous current stream of the thread, which dropping the guard restores.
    #[must_use]
    pub const fn outer(&self) -> Stream {
        Stream {
            device: self.device,
            id: self.before,
        }
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        if self.device >= 0 {
            let mut own = 0;
            // SAFETY: `own` is valid for a write. This is the thread that entered, because the
            // guard is not `Send`.
            let _ = unsafe { ffi::rh_stream_exchange(self.device, self.before, &raw mut own) };
        }
    }
}

/// A point in the work of a device.
#[derive(Debug)]
pub struct Event {
    raw: NonNull<ffi::RhEvent>,
}

// SAFETY: any thread may use CUDA's events.
unsafe impl Send for Event {}
// SAFETY: as above; all calls on a shared event only read it.
unsafe impl Sync for Event {}

impl Event {
    /// An event that passes when the current work in the thread's current stream of the device is
    /// done.
    ///
    /// # Errors
    /// The device has failed or does not exist.
    pub fn record(device: Device) -> Result<Self> {
        Self::record_with(device, false)
    }

    /// An event with a time, for [`Self::since`]. On a CPU it is the time of this call.
    ///
    /// # Errors
    /// The device has failed or does not exist.
    pub fn record_timed(device: Device) -> Result<Self> {
        Self::record_with(device, true)
    }

    fn record_with(device: Device, timed: bool) -> Result<Self> {
        Self::record_at(index(device)?, timed)
    }

    fn record_at(device: c_int, timed: bool) -> Result<Self> {
        // SAFETY: the output is valid for a write.
        let raw = make(|out| unsafe { ffi::rh_event_record(device, timed, out) })?;
        Ok(Self { raw })
    }

    /// The time on the device between an earlier event and this event. Both must come from
    /// [`Self::record_timed`] and must have passed.
    ///
    /// # Errors
    /// An event has not passed or has no time, or the events are of different devices.
    pub fn since(&self, earlier: &Self) -> Result<Duration> {
        let mut nanoseconds = 0;
        let (from, to) = (earlier.raw.as_ptr(), self.raw.as_ptr());
        // SAFETY: both events are live, `nanoseconds` valid for a write.
        check(unsafe { ffi::rh_event_elapsed(from, to, &raw mut nanoseconds) })?;
        Ok(Duration::from_nanos(
            u64::try_from(nanoseconds).unwrap_or_default(),
        ))
    }

    pub(crate) const fn from_raw(raw: NonNull<ffi::RhEvent>) -> Self {
        Self { raw }
    }

    /// Whether the event has passed. Does not wait.
    ///
    /// # Errors
    /// The work before the event has failed.
    pub fn has_passed(&self) -> Result<bool> {
        let mut passed = false;
        // SAFETY: the event is live, `passed` valid for a write.
        check(unsafe { ffi::rh_event_query(self.raw.as_ptr(), &raw mut passed) })?;
        Ok(passed)
    }

    /// Waits for the event without using the core meanwhile.
    ///
    /// # Errors
    /// The work before the event has failed.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the call only increments a counter.
        unsafe { ffi::rh_count_host_sync() };
        wait_until(|| self.has_passed())
    }

    /// Makes the thread's current stream of the event's device wait for the event. The host does
    /// not wait.
    ///
    /// # Errors
    /// The device reports a failure.
    pub fn block(&self) -> Result<()> {
        // SAFETY: the event is live.
        check(unsafe { ffi::rh_event_block(self.raw.as_ptr()) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the bridge created the event, and this frees it once. An error while closing has
        // no effect.
        let _ = unsafe { ffi::rh_event_free(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests;
