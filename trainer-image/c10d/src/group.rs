//! Process groups and their collectives.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tch::{Device, Kind, Tensor};

use crate::connections::{self, Connections};
use crate::error::{Error, ErrorKind, Result, c_string, check};
use crate::ffi;
use crate::store::{Store, make, milliseconds};
use crate::tensors::pointers;

mod exchange;
mod options;
mod sum;

pub use exchange::Exchange;
pub use options::{Backend, GroupOptions, ReduceOp};
pub use sum::take_sum_wait;

/// Number of consecutive checks that must find a collective waiting while a peer has closed its
/// connection, before the collective counts as failed. The last collective of a group may end
/// shortly after a peer has left.
const LOOKS_AT_ENDED: u32 = 10;

/// A collective over Gloo that was waiting beside a closed connection, and the number of
/// consecutive checks that found it.
#[derive(Debug, Default)]
struct Stuck {
    wait: u64,
    num_looks: u32,
}

/// The ranks of one generation. All ranks must call the same collectives in the same order.
#[derive(Debug)]
pub struct ProcessGroup {
    raw: NonNull<ffi::RhGroup>,
    backend: Backend,
    connections: Connections,
    stuck: Mutex<Stuck>,
    is_aborted: AtomicBool,
    is_shut: AtomicBool,
    /// The result of the shutdown or abort of the group, whichever happened first.
    ended: OnceLock<Result<()>>,
    rank: u32,
    world_size: u32,
}

// SAFETY: c10d's process groups may be used from any thread; `abort` is meant for other threads.
unsafe impl Send for ProcessGroup {}
// SAFETY: as above.
unsafe impl Sync for ProcessGroup {}

impl ProcessGroup {
    /// Connects to the other ranks through the store. Blocks until all `world_size` ranks are
    /// connected.
    ///
    /// Gloo has no abort, so an abort closes the connections of the group. These are the
    /// connections that this process opens during this call, except those to stores. A connection
    /// that another thread opens during this call is mistaken for one of them.
    ///
    /// # Errors
    /// `rank` is not below `world_size`, or a peer does not connect within the timeout.
    pub fn new(store: &Store, rank: u32, world_size: u32, options: &GroupOptions) -> Result<Self> {
        let (own, size) = (int(rank)?, int(world_size)?);
        if rank >= world_size {
            return Err(Error::refused(format!(
                "rank {rank} must be below the world size {world_size}"
            )));
        }
        let name = c_string(&options.name)?;
        let address = c_string(&options.address.to_string())?;
        let (timeout, before) = (milliseconds(options.timeout), connections::sockets());
        let raw = match options.backend {
            // SAFETY: the store is live, strings are NUL-terminated, `out` is valid for a write.
            Backend::Gloo => make(|out| unsafe {
                let (address, name) = (address.as_ptr(), name.as_ptr());
                ffi::rh_group_gloo(store.as_ptr(), own, size, timeout, address, name, out)
            }),
            #[cfg(feature = "nccl")]
            // SAFETY: as above.
            Backend::Nccl { device } => make(|out| unsafe {
                let (device, name) = (c_int::from(device), name.as_ptr());
                ffi::rh_group_nccl(store.as_ptr(), own, size, timeout, device, name, out)
            }),
            #[cfg(feature = "fake-nccl")]
            // SAFETY: as above.
            Backend::FakeNccl => make(|out| unsafe {
                let (address, name) = (address.as_ptr(), name.as_ptr());
                ffi::rh_group_fake_nccl(store.as_ptr(), own, size, timeout, address, name, out)
            }),
        }?;
        let store_ports = [store.port(), options.own_store_port.unwrap_or(store.port())];
        let connections = match options.backend {
            Backend::Gloo => Connections::opened_since(&before, &store_ports),
            #[cfg(feature = "nccl")]
            Backend::Nccl { .. } => Connections::default(),
            #[cfg(feature = "fake-nccl")]
            Backend::FakeNccl => Connections::opened_since(&before, &store_ports),
        };
        Ok(Self {
            raw,
            backend: options.backend,
            connections,
            stuck: Mutex::default(),
            is_aborted: AtomicBool::new(false),
            is_shut: AtomicBool::new(false),
            ended: OnceLock::new(),
            rank,
            world_size,
        })
    }

    /// The rank of this process.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks in the group.
    #[must_use]
    pub const fn world_size(&self) -> u32 {
        self.world_size
    }

    /// The library that moves the data.
    #[must_use]
    pub const fn backend(&self) -> Backend {
        self.backend
    }

    /// Combines the tensors of all ranks in place. With NCCL the result is complete when the CPU
    /// has read it, and it is valid only if [`Self::check`] succeeds after that.
    ///
    /// # Errors
    /// A peer is lost or does not answer, or the tensor is not dense and contiguous.
    pub fn all_reduce(&self, tensor: &mut Tensor, operation: ReduceOp) -> Result<()> {
        fit(tensor)?;
        let operation = match operation {
            ReduceOp::Sum => 0,
            ReduceOp::Min => 1,
            ReduceOp::Max => 2,
        };
        self.collective(|group| {
            // SAFETY: group and tensor are live; the bridge keeps neither.
            unsafe { ffi::rh_group_all_reduce(group, tensor.as_mut_ptr(), operation) }
        })
    }

    /// Copies the tensor of rank `root` to all ranks. [`Self::all_reduce`] describes when it is
    /// complete.
    ///
    /// # Errors
    /// A peer is lost or does not answer, the tensor is not dense and contiguous, or there is no
    /// such rank.
    pub fn broadcast(&self, tensor: &mut Tensor, root: u32) -> Result<()> {
        fit(tensor)?;
        let root = self.root(root)?;
        self.collective(|group| {
            // SAFETY: group and tensor are live; the bridge keeps neither.
            unsafe { ffi::rh_group_broadcast(group, tensor.as_mut_ptr(), root) }
        })
    }

    /// Copies tensor `i` of rank `i` to all ranks. Starts all broadcasts before it waits for the
    /// first, and skips empty tensors. [`Self::all_reduce`] describes when they are complete.
    ///
    /// # Errors
    /// A peer is lost or does not answer, a tensor is not dense and contiguous, or the number of
    /// tensors is not the number of ranks. Some tensors may still change until the group is
    /// aborted.
    pub fn broadcast_each(&self, tensors: &mut [Tensor]) -> Result<()> {
        tensors.iter().try_for_each(fit)?;
        if tensors.len() != self.world_size as usize {
            let words = format!("{} tensors for {} ranks", tensors.len(), self.world_size);
            return Err(Error::refused(words));
        }
        let pointers = pointers(tensors);
        let (list, count) = (pointers.as_ptr(), pointers.len());
        self.collective(|group| {
            // SAFETY: group, tensors and the list of pointers are live. Broadcasts that still run
            // after an error hold references of their own to the tensors.
            unsafe { ffi::rh_group_broadcast_each(group, list, count) }
        })
    }

    /// Broadcasts many tensors in few messages. Their strides may be arbitrary and may differ
    /// between ranks, because elements are sent in the order of their indices.
    ///
    /// # Errors
    /// A peer is lost or does not answer, or there is no such rank.
    pub fn broadcast_coalesced(&self, tensors: &mut [Tensor], root: u32) -> Result<()> {
        tensors.iter().try_for_each(usable)?;
        let root = self.root(root)?;
        let pointers = pointers(tensors);
        let (list, count) = (pointers.as_ptr(), pointers.len());
        self.collective(|group| {
            // SAFETY: group, tensors and the list of pointers are live; the bridge keeps none.
            unsafe { ffi::rh_group_broadcast_coalesced(group, list, count, root) }
        })
    }

    /// Waits until all ranks have called it. With NCCL possibly only the device waits.
    ///
    /// # Errors
    /// A peer is lost or does not answer.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: the group is live.
        self.collective(|group| unsafe { ffi::rh_group_barrier(group) })
    }

    /// Runs a collective. If the group was aborted before or during the call, the collective has
    /// failed, whatever it returned.
    pub(crate) fn collective(&self, call: impl FnOnce(*const ffi::RhGroup) -> c_int) -> Result<()> {
        self.check()?;
        if self.is_shut.load(Ordering::SeqCst) {
            return Err(Error::refused("the process group was shut down"));
        }
        let result = check(call(self.raw.as_ptr()));
        self.check().and(result)
    }

    /// Checks that this process has not started to abort the group, so that results for which the
    /// caller has waited are valid.
    ///
    /// # Errors
    /// The group was aborted; results of its collectives are garbage.
    pub fn check(&self) -> Result<()> {
        if self.is_aborted.load(Ordering::SeqCst) {
            return Err(Error {
                kind: ErrorKind::ConnectionLost,
                message: "the process group was aborted".to_owned(),
            });
        }
        Ok(())
    }

    /// Whether a collective has failed without returning. The caller must then end it with
    /// [`Self::abort`]. NCCL's watchdog detects collectives that hang for longer than the timeout.
    /// Over Gloo a collective has failed if it still waits after a peer has closed its connection.
    /// Call this about every 50 ms: it returns true after 10 consecutive such findings.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        if self.backend == Backend::Gloo {
            return self.check().is_ok() && self.is_stuck();
        }
        let mut failed = false;
        // SAFETY: the group is live, `failed` valid for a write.
        let mut ask = || check(unsafe { ffi::rh_group_failed(self.raw.as_ptr(), &raw mut failed) });
        self.check().is_ok() && ask().is_ok() && failed
    }

    fn is_stuck(&self) -> bool {
        let mut wait = 0;
        // SAFETY: the group is live, `wait` valid for a write.
        let asked = check(unsafe { ffi::rh_group_oldest_wait(self.raw.as_ptr(), &raw mut wait) });
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        // Other threads may have opened connections while the group was created; these are not to
        // peers.
        let are_of_peers = self.connections.len() + 1 == self.world_size as usize;
        if asked.is_err() || wait == 0 || !are_of_peers || !self.connections.is_one_ended() {
            *stuck = Stuck::default();
            return false;
        }
        let num_looks = if stuck.wait == wait {
            stuck.num_looks.saturating_add(1)
        } else {
            1
        };
        *stuck = Stuck { wait, num_looks };
        num_looks >= LOOKS_AT_ENDED
    }

    /// Sets how long later collectives wait for their peers.
    ///
    /// # Errors
    /// The library cannot change the timeout.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        let timeout = milliseconds(timeout);
        // SAFETY: the group is live.
        check(unsafe { ffi::rh_group_set_timeout(self.raw.as_ptr(), timeout) })
    }

    /// Ends the group in order, after its last collective. Call it on all ranks at about the same
    /// time, ideally when the next group has completed its first collective: NCCL waits for the
    /// ranks of the same host, for at most the group's timeout. If the shutdown fails, the group is
    /// aborted. Gloo does not wait. A group over NCCL that is dropped without a shutdown is
    /// aborted, while peers may still read this rank's memory.
    ///
    /// # Errors
    /// The shutdown failed and the group was aborted instead, or the group had been aborted before.
    /// In both cases the group can no longer be used.
    pub fn shutdown(&self) -> Result<()> {
        self.is_shut.store(true, Ordering::SeqCst);
        let shutdown = || {
            // SAFETY: the group is live.
            check(unsafe { ffi::rh_group_shutdown(self.raw.as_ptr()) }).inspect_err(|_| {
                self.is_aborted.store(true, Ordering::SeqCst);
                // Return the error of the shutdown, which explains the failure.
                let _ = self.abort_now();
            })
        };
        self.ended.get_or_init(shutdown).clone().and(self.check())
    }

    /// Ends pending collectives, in this process and on all ranks, and makes all later collectives
    /// fail. Any thread can call it. NCCL allows only one abort per group, so a second caller waits
    /// until the first abort is done. Aborting a group after its shutdown has no effect. Gloo has
    /// no abort: this closes its connections, and abandons a thread of Gloo that does not notice
    /// (see [`num_abandoned`]).
    ///
    /// # Errors
    /// The library refused the abort.
    pub fn abort(&self) -> Result<()> {
        // Set the flag first: a thread that the abort wakes must know the reason.
        self.is_aborted.store(true, Ordering::SeqCst);
        self.ended.get_or_init(|| self.abort_now()).clone()
    }

    fn abort_now(&self) -> Result<()> {
        // SAFETY: the group is live; the function may be called while another thread waits.
        let result = check(unsafe { ffi::rh_group_abort(self.raw.as_ptr()) });
        self.connections.cut();
        result
    }

    fn root(&self, root: u32) -> Result<c_int> {
        if root >= self.world_size {
            let size = self.world_size;
            return Err(Error::refused(format!(
                "root {root} must be below the world size {size}"
            )));
        }
        int(root)
    }

    pub(crate) fn as_ptr(&self) -> *const ffi::RhGroup {
        self.raw.as_ptr()
    }
}

/// Number of Gloo collectives of aborted groups that have not ended and for which no thread waits.
/// Each may occupy a thread until its timeout.
#[must_use]
pub fn num_abandoned() -> u64 {
    // SAFETY: the call only reads a counter.
    unsafe { ffi::rh_num_abandoned() }
}

/// Number of groups over the fake NCCL that this process has aborted, including groups that were
/// dropped without a shutdown.
#[cfg(feature = "fake-nccl")]
#[must_use]
pub fn fake_nccl_aborts() -> u64 {
    // SAFETY: the call only reads a counter.
    unsafe { ffi::rh_fake_nccl_aborts() }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // SAFETY: the bridge created the group, and this frees it once. An error while closing has
        // no effect.
        let _ = unsafe { ffi::rh_group_free(self.raw.as_ptr()) };
    }
}

fn int(value: u32) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| Error::refused(format!("{value} is too large")))
}

/// Checks that a collective can use the tensor. The library would throw an exception on one of its
/// own threads, which ends the process.
fn fit(tensor: &Tensor) -> Result<()> {
    usable(tensor)?;
    if !tensor.is_contiguous() {
        return Err(Error::refused("the tensor is not contiguous"));
    }
    Ok(())
}

fn usable(tensor: &Tensor) -> Result<()> {
    if !tensor.defined() {
        return Err(Error::refused("the tensor is undefined"));
    }
    match (tensor.device(), tensor.kind()) {
        (Device::Cpu | Device::Cuda(_), kind) if !matches!(kind, Kind::ComplexHalf) => Ok(()),
        (device, kind) => Err(Error::refused(format!("a {kind:?} tensor on {device:?}"))),
    }
}
