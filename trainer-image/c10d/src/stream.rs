//! Streams and events of a GPU. On a CPU they do nothing: its work is done when a call returns.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::time::Duration;

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result, check};
use crate::ffi;
use crate::store::make;
use crate::tensors::made;

/// How often this process has waited for a device in this crate's calls, on a CPU, too, where they return at once:
/// [`Event::wait`], [`Stream::wait`], [`Agreement::wait`](crate::Agreement::wait) and
/// [`Reducer::waited`](crate::Reducer::waited). What tch's own calls wait for is not in it: on a GPU see
/// [`watch_host_syncs`].
#[must_use]
pub fn host_syncs() -> u64 {
    // SAFETY: reads a counter.
    unsafe { ffi::rh_host_syncs() }
}

/// What libtorch does when one of its calls makes the host wait for the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostSyncs {
    /// Nothing.
    Allow = 0,
    /// A warning on stderr.
    Warn = 1,
    /// The call fails.
    Refuse = 2,
}

/// As `torch.cuda.set_sync_debug_mode`, for the whole process. A build without CUDA has nothing to watch.
///
/// # Errors
/// None that a caller can cause.
pub fn watch_host_syncs(mode: HostSyncs) -> Result<()> {
    let mode = mode as c_int;
    // SAFETY: takes a number.
    #[cfg(feature = "nccl")]
    check(unsafe { ffi::rh_sync_debug(mode) })?;
    let _ = mode;
    Ok(())
}

/// A tensor of host memory on a device, without making the host wait for the device: a GPU gets it by way of pinned
/// memory, in the order of the thread's current stream. For a CPU it is the same tensor.
///
/// # Errors
/// There is no pinned memory, or the device has failed or is not there.
pub fn upload(tensor: &Tensor, device: Device) -> Result<Tensor> {
    let device = index(device)?;
    if device < 0 {
        return Ok(tensor.shallow_clone());
    }
    // SAFETY: the tensor is live, `out` valid for a write.
    made(|out| unsafe { ffi::rh_upload(tensor.as_ptr(), device, out) })
}

/// A tensor of this kind and these sizes from its bytes, as [`upload`] puts it on a device. The bytes are copied before this
/// returns: to pinned memory for a GPU, which libtorch keeps for the next one, and not to fresh pages first.
///
/// # Errors
/// The bytes are not those of such a tensor, or as [`upload`].
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
    // SAFETY: the bytes are as many, aligned, and outlive the view, which nothing writes to.
    let view = unsafe { Tensor::f_from_blob(bytes.as_ptr(), sizes, &strides, kind, Device::Cpu) }?;
    if device == Device::Cpu {
        let mut own = Tensor::f_empty(sizes, (kind, Device::Cpu))?;
        own.f_copy_(&view)?;
        return Ok(own);
    }
    upload(&view, device)
}

/// Index of a GPU; -1 for the CPU.
fn index(device: Device) -> Result<c_int> {
    match device {
        Device::Cpu => Ok(-1),
        Device::Cuda(index) => {
            c_int::try_from(index).map_err(|_| Error::refused(format!("GPU {index}")))
        }
        _ => Err(Error::refused(format!("streams of {device:?}"))),
    }
}

/// How long a waiting thread sleeps between two polls.
const LOOK_INTERVAL: Duration = Duration::from_micros(50);

/// Polls until it is so. CUDA's own wait for an event spins: it takes a core from the threads that decode the next batch, and a
/// pod with eight GPUs and eight cores has none to spare.
fn wait_until(mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    while !is_so()? {
        std::thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

/// A queue of work of a GPU, beside the one that a thread begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    device: c_int,
    id: i64,
}

impl Stream {
    /// One of libtorch's pool of 32 for the device.
    ///
    /// # Errors
    /// The device has failed or is not there.
    pub fn new(device: Device) -> Result<Self> {
        let (device, mut id) = (index(device)?, 0);
        if device >= 0 {
            // SAFETY: valid for a write.
            check(unsafe { ffi::rh_stream_new(device, &raw mut id) })?;
        }
        Ok(Self { device, id })
    }

    /// Makes it the current stream of this thread until the guard is dropped. Work on it is not ordered with that
    /// of other streams: see [`Event::block`].
    ///
    /// # Errors
    /// The device has failed.
    pub fn enter(self) -> Result<StreamGuard> {
        let mut before = 0;
        if self.device >= 0 {
            // SAFETY: valid for a write.
            check(unsafe { ffi::rh_stream_exchange(self.device, self.id, &raw mut before) })?;
        }
        Ok(StreamGuard {
            device: self.device,
            before,
            of_thread: PhantomData,
        })
    }

    /// Waits until all its work is done.
    ///
    /// # Errors
    /// The device has failed.
    pub fn wait(self) -> Result<()> {
        if self.device < 0 {
            return Ok(());
        }
        let guard = self.enter()?;
        let end = Event::record_at(self.device, false)?;
        drop(guard);
        end.wait()
    }

    /// The tensor is used on this stream, too: when it is dropped, its memory is given to others only after the
    /// stream's work of now is done. Needed for a tensor that another stream has made.
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

/// See [`Stream::enter`].
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct StreamGuard {
    device: c_int,
    before: i64,
    of_thread: PhantomData<*const ()>,
}

impl StreamGuard {
    /// The stream that was the thread's current one before, and will be again.
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
            // SAFETY: valid for a write. Of the same thread, for the guard is not `Send`.
            let _ = unsafe { ffi::rh_stream_exchange(self.device, self.before, &raw mut own) };
        }
    }
}

/// A point in the work of a device.
#[derive(Debug)]
pub struct Event {
    raw: NonNull<ffi::RhEvent>,
}

// SAFETY: CUDA's events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; all calls on a shared one only read it.
unsafe impl Sync for Event {}

impl Event {
    /// Passes when the work is done that is now in the thread's current stream of the device.
    ///
    /// # Errors
    /// The device has failed or is not there.
    pub fn record(device: Device) -> Result<Self> {
        Self::record_with(device, false)
    }

    /// The same, for [`Self::since`]. On a CPU it is the time of this call.
    ///
    /// # Errors
    /// The device has failed or is not there.
    pub fn record_timed(device: Device) -> Result<Self> {
        Self::record_with(device, true)
    }

    fn record_with(device: Device, timed: bool) -> Result<Self> {
        Self::record_at(index(device)?, timed)
    }

    fn record_at(device: c_int, timed: bool) -> Result<Self> {
        // SAFETY: valid for a write.
        let raw = make(|out| unsafe { ffi::rh_event_record(device, timed, out) })?;
        Ok(Self { raw })
    }

    /// How long the device took from an earlier event to this one. Both are of [`Self::record_timed`] and have passed.
    ///
    /// # Errors
    /// One of them has not passed or is not timed, or they are of different devices.
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

    /// Whether it has passed, without waiting.
    ///
    /// # Errors
    /// The work before it has failed.
    pub fn has_passed(&self) -> Result<bool> {
        let mut passed = false;
        // SAFETY: the event is live, `passed` valid for a write.
        check(unsafe { ffi::rh_event_query(self.raw.as_ptr(), &raw mut passed) })?;
        Ok(passed)
    }

    /// Waits for the event, and leaves the core to other threads meanwhile.
    ///
    /// # Errors
    /// The work before it has failed.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: it only increments a counter.
        unsafe { ffi::rh_count_host_sync() };
        wait_until(|| self.has_passed())
    }

    /// The thread's current stream of the event's device waits for it, the host does not.
    ///
    /// # Errors
    /// The device has failed.
    pub fn block(&self) -> Result<()> {
        // SAFETY: the event is live.
        check(unsafe { ffi::rh_event_block(self.raw.as_ptr()) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by the bridge and freed once. An error while closing changes nothing.
        let _ = unsafe { ffi::rh_event_free(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests;
