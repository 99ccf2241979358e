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

/// So often in a row a collective is found waiting beside a connection that a peer has ended before it has failed. The
/// last collective of a group may end a moment after a peer has left.
const LOOKS_AT_ENDED: u32 = 20;

/// The collective over Gloo that was found waiting beside an ended connection, and how often in a row.
#[derive(Debug, Default)]
struct Stuck {
    wait: u64,
    num_looks: u32,
}

/// The ranks of one generation. Every collective must be called by all of them, in one order.
#[derive(Debug)]
pub struct ProcessGroup {
    raw: NonNull<ffi::RhGroup>,
    backend: Backend,
    connections: Connections,
    stuck: Mutex<Stuck>,
    is_aborted: AtomicBool,
    is_shut: AtomicBool,
    /// How the group's end went: by a shutdown or by an abort, whichever came first.
    ended: OnceLock<Result<()>>,
    rank: u32,
    world_size: u32,
}

// SAFETY: c10d's process groups may be used from any thread; `abort` is meant for another one.
unsafe impl Send for ProcessGroup {}
// SAFETY: as above.
unsafe impl Sync for ProcessGroup {}

impl ProcessGroup {
    /// Meets `world_size` ranks in the store and connects to them; blocks until all are there.
    ///
    /// Gloo has no abort, so over it an abort closes the connections of the group: those that this process has opened
    /// meanwhile, except to stores. A connection that another thread opens meanwhile is taken for one of them.
    ///
    /// # Errors
    /// `rank` is not below `world_size`, or a peer did not come within the timeout.
    pub fn new(store: &Store, rank: u32, world_size: u32, options: &GroupOptions) -> Result<Self> {
        let (own, size) = (int(rank)?, int(world_size)?);
        if rank >= world_size {
            return Err(Error::refused(format!(
                "rank {rank} of a world of {world_size}"
            )));
        }
        let name = c_string(&options.name)?;
        let address = c_string(&options.address.to_string())?;
        let (timeout, before) = (milliseconds(options.timeout), connections::sockets());
        let raw = match options.backend {
            // SAFETY: the store is live, texts are NUL-terminated, `out` is valid for a write.
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

    /// This process's rank.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    #[must_use]
    pub const fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Which library moves the data.
    #[must_use]
    pub const fn backend(&self) -> Backend {
        self.backend
    }

    /// Combines the tensor of all ranks, in place. With NCCL the result is there when it has been read by the
    /// CPU, and it is one if [`Self::check`] then says that the group was not aborted.
    ///
    /// # Errors
    /// A peer is gone or silent, or the tensor is not dense and contiguous.
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

    /// Copies the tensor of rank `root` into that of all ranks; when it is there, see [`Self::all_reduce`].
    ///
    /// # Errors
    /// A peer is gone or silent, the tensor is not dense and contiguous, or there is no such rank.
    pub fn broadcast(&self, tensor: &mut Tensor, root: u32) -> Result<()> {
        fit(tensor)?;
        let root = self.root(root)?;
        self.collective(|group| {
            // SAFETY: group and tensor are live; the bridge keeps neither.
            unsafe { ffi::rh_group_broadcast(group, tensor.as_mut_ptr(), root) }
        })
    }

    /// [`Self::broadcast`] of many tensors, packed into few messages. They may have any strides, different ones on
    /// each rank, too: elements travel in the order of their indices.
    ///
    /// # Errors
    /// A peer is gone or silent, or there is no such rank.
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

    /// Waits until all ranks are here. With NCCL it may be the device alone that waits.
    ///
    /// # Errors
    /// A peer is gone or silent.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: the group is live.
        self.collective(|group| unsafe { ffi::rh_group_barrier(group) })
    }

    /// A collective on a group that was aborted before it, or meanwhile, has failed, whatever came of it.
    pub(crate) fn collective(&self, call: impl FnOnce(*const ffi::RhGroup) -> c_int) -> Result<()> {
        self.check()?;
        if self.is_shut.load(Ordering::SeqCst) {
            return Err(Error::refused("the process group was shut down"));
        }
        let result = check(call(self.raw.as_ptr()));
        self.check().and(result)
    }

    /// Whether results that have been waited for can be results: nobody in this process had begun to abort
    /// the group.
    ///
    /// # Errors
    /// The group was aborted; what its collectives have left is garbage.
    pub fn check(&self) -> Result<()> {
        if self.is_aborted.load(Ordering::SeqCst) {
            return Err(Error {
                kind: ErrorKind::ConnectionLost,
                message: "the process group was aborted".to_owned(),
            });
        }
        Ok(())
    }

    /// Whether a collective has failed that itself does not return: then [`Self::abort`] is to end it. NCCL's watchdog
    /// knows of those that have hung for longer than the timeout. Over Gloo it is one that waits although a peer has
    /// ended its connection. Ask about every 50 ms: it has failed when it was found so 20 times in a row.
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
        // Another thread may have opened others while the group was built, which say nothing of its peers.
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

    /// How long collectives wait for their peers from now on.
    ///
    /// # Errors
    /// The library cannot change it.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        let timeout = milliseconds(timeout);
        // SAFETY: the group is live.
        check(unsafe { ffi::rh_group_set_timeout(self.raw.as_ptr(), timeout) })
    }

    /// Ends the group in order, when its collectives are done and no more are needed. Call it on all ranks at
    /// about the same time, best when the next group has completed its first collective: NCCL waits for the ranks
    /// of the same host, at most the group's timeout. If that fails, the group is aborted. Gloo has nothing to
    /// wait for. Without it a group over NCCL is aborted when it is dropped, while peers may still read this
    /// rank's memory.
    ///
    /// # Errors
    /// The shutdown failed and the group was aborted instead, or it had been aborted before. The group is over in
    /// either case.
    pub fn shutdown(&self) -> Result<()> {
        self.is_shut.store(true, Ordering::SeqCst);
        let shutdown = || {
            // SAFETY: the group is live.
            check(unsafe { ffi::rh_group_shutdown(self.raw.as_ptr()) }).inspect_err(|_| {
                self.is_aborted.store(true, Ordering::SeqCst);
                // The reason why the shutdown failed says more.
                let _ = self.abort_now();
            })
        };
        self.ended.get_or_init(shutdown).clone().and(self.check())
    }

    /// Makes pending collectives end, here and on all ranks, and all later ones fail. From any thread: NCCL
    /// allows only one abort per group, so a second caller waits until the first is done. The abort of a group
    /// that has been shut down does nothing. Gloo has no abort: its connections are cut, and a thread of Gloo that
    /// does not notice is left behind, see [`num_abandoned`].
    ///
    /// # Errors
    /// The library refused.
    pub fn abort(&self) -> Result<()> {
        // First of all: a thread that the abort wakes must know the reason.
        self.is_aborted.store(true, Ordering::SeqCst);
        self.ended.get_or_init(|| self.abort_now()).clone()
    }

    fn abort_now(&self) -> Result<()> {
        // SAFETY: the group is live; aborting while another thread waits is what it is for.
        let result = check(unsafe { ffi::rh_group_abort(self.raw.as_ptr()) });
        self.connections.cut();
        result
    }

    fn root(&self, root: u32) -> Result<c_int> {
        if root >= self.world_size {
            let size = self.world_size;
            return Err(Error::refused(format!("root {root} of a world of {size}")));
        }
        int(root)
    }

    pub(crate) fn as_ptr(&self) -> *const ffi::RhGroup {
        self.raw.as_ptr()
    }
}

/// Collectives over Gloo of groups that this process has aborted, which nothing waits for any more and which have not
/// ended. Each may hold a thread, until the timeout that it began with.
#[must_use]
pub fn num_abandoned() -> u64 {
    // SAFETY: reads a counter.
    unsafe { ffi::rh_num_abandoned() }
}

/// How many groups this process has aborted over the stand-in for NCCL, those included that were dropped without a
/// shutdown.
#[cfg(feature = "fake-nccl")]
#[must_use]
pub fn fake_nccl_aborts() -> u64 {
    // SAFETY: reads a counter.
    unsafe { ffi::rh_fake_nccl_aborts() }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // SAFETY: made by the bridge and freed once. An error while closing changes nothing.
        let _ = unsafe { ffi::rh_group_free(self.raw.as_ptr()) };
    }
}

fn int(value: u32) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| Error::refused(format!("{value} is too large")))
}

/// What a collective can take; checked here because the library's answer would be an exception on
/// one of its own threads.
fn fit(tensor: &Tensor) -> Result<()> {
    usable(tensor)?;
    if !tensor.is_contiguous() {
        return Err(Error::refused("a tensor that is not contiguous"));
    }
    Ok(())
}

fn usable(tensor: &Tensor) -> Result<()> {
    if !tensor.defined() {
        return Err(Error::refused("an undefined tensor"));
    }
    match (tensor.device(), tensor.kind()) {
        (Device::Cpu | Device::Cuda(_), kind) if !matches!(kind, Kind::ComplexHalf) => Ok(()),
        (device, kind) => Err(Error::refused(format!("a {kind:?} tensor on {device:?}"))),
    }
}
