//! Process groups and their collectives.

use std::ffi::c_int;
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

use crate::connections::{self, Connections};
use crate::error::{Error, Result, c_string, check};
use crate::ffi;
use crate::store::{Store, make, milliseconds};

/// Which library moves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// CPU tensors over TCP.
    Gloo,
    /// CUDA tensors.
    #[cfg(feature = "nccl")]
    Nccl {
        /// Index of the device of this rank.
        device: u16,
    },
}

/// How a group is built.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// Which library moves the data.
    pub backend: Backend,
    /// After this long without a peer's answer a collective fails.
    pub timeout: Duration,
    /// This process's own address, where Gloo listens.
    pub address: IpAddr,
    /// Name of the group, in messages.
    pub name: String,
}

/// What an all-reduce computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// Sum over ranks.
    Sum,
    /// Smallest over ranks.
    Min,
    /// Greatest over ranks.
    Max,
}

/// The ranks of one generation. Every collective must be called by all of them, in one order.
#[derive(Debug)]
pub struct ProcessGroup {
    raw: NonNull<ffi::RhGroup>,
    connections: Connections,
    aborted: AtomicBool,
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
        let timeout = milliseconds(options.timeout);
        let before = connections::descriptors();
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
        }?;
        let connections = match options.backend {
            Backend::Gloo => Connections::opened_since(&before, store.port()),
            #[cfg(feature = "nccl")]
            Backend::Nccl { .. } => Connections::default(),
        };
        Ok(Self {
            raw,
            connections,
            aborted: AtomicBool::new(false),
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

    /// Combines the tensor of all ranks, in place.
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
        // SAFETY: group and tensor are live; the bridge keeps neither.
        check(unsafe {
            ffi::rh_group_all_reduce(self.raw.as_ptr(), tensor.as_mut_ptr(), operation)
        })
    }

    /// Copies the tensor of rank `root` into that of all ranks.
    ///
    /// # Errors
    /// A peer is gone or silent, the tensor is not dense and contiguous, or there is no such rank.
    pub fn broadcast(&self, tensor: &mut Tensor, root: u32) -> Result<()> {
        fit(tensor)?;
        let root = self.root(root)?;
        // SAFETY: group and tensor are live; the bridge keeps neither.
        check(unsafe { ffi::rh_group_broadcast(self.raw.as_ptr(), tensor.as_mut_ptr(), root) })
    }

    /// [`Self::broadcast`] of many tensors, packed into few messages.
    ///
    /// # Errors
    /// As [`Self::broadcast`].
    pub fn broadcast_coalesced(&self, tensors: &mut [Tensor], root: u32) -> Result<()> {
        tensors.iter().try_for_each(fit)?;
        let root = self.root(root)?;
        let pointers: Vec<*mut C_tensor> = tensors.iter_mut().map(Tensor::as_mut_ptr).collect();
        // SAFETY: group, tensors and the list of pointers are live; the bridge keeps none.
        check(unsafe {
            ffi::rh_group_broadcast_coalesced(
                self.raw.as_ptr(),
                pointers.as_ptr(),
                pointers.len(),
                root,
            )
        })
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// A peer is gone or silent.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: the group is live.
        check(unsafe { ffi::rh_group_barrier(self.raw.as_ptr()) })
    }

    /// Makes pending collectives fail, here and on all ranks, and all later ones. From any thread; NCCL
    /// bears only one abort per group, so that only the first call does something. Gloo has none: its
    /// connections are cut.
    ///
    /// # Errors
    /// The library refused.
    pub fn abort(&self) -> Result<()> {
        if self.aborted.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.connections.cut();
        // SAFETY: the group is live; aborting while another thread waits is what it is for.
        check(unsafe { ffi::rh_group_abort(self.raw.as_ptr()) })
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
    if !tensor.defined() {
        return Err(Error::refused("an undefined tensor"));
    }
    if !tensor.is_contiguous() {
        return Err(Error::refused("a tensor that is not contiguous"));
    }
    match (tensor.device(), tensor.kind()) {
        (Device::Cpu | Device::Cuda(_), kind) if !matches!(kind, Kind::ComplexHalf) => Ok(()),
        (device, kind) => Err(Error::refused(format!("a {kind:?} tensor on {device:?}"))),
    }
}
