//! Safe Rust over the parts of libtorch that tch lacks: c10d's store, process groups, collectives
//! and the Reducer of `DistributedDataParallel`. It also has tools for fast steps: autocast, memory
//! formats, recomputed activations, updates of whole lists of tensors, and streams.
//!
//! The crate has three layers: `src/bridge` is a C ABI that catches every C++ exception; `ffi`
//! declares this ABI; the public types check tensors before they call. A call never panics:
//! failures are an [`Error`]. An exception on one of the library's own threads still ends the
//! process, so a job must survive the death of a process.

// Tests compare with exact numbers.
#![cfg_attr(test, allow(clippy::float_cmp))]

mod agreement;
mod autocast;
mod connections;
mod digest;
mod error;
mod experts;
mod ffi;
pub mod foreach;
pub mod format;
mod fused;
mod group;
mod host_copy;
#[cfg(feature = "fake-nccl")]
mod memory;
mod observe;
mod pipe;
mod process;
mod recompute;
mod reducer;
mod segment;
mod sharding;
mod store;
mod stream;
mod tensors;
mod trace;

pub use agreement::{Agreed, Agreement, Vote, agree};
pub use autocast::{Autocast, Numerics};
pub use digest::digest;
pub use error::{Error, ErrorKind, Result};
pub use experts::Experts;
pub use format::MemoryFormat;
pub use fused::{AdamWUpdate, Gate, Moments, SgdUpdate};
#[cfg(feature = "fake-nccl")]
pub use group::fake_nccl_aborts;
pub use group::{
    Backend, Exchange, GroupOptions, ProcessGroup, ReduceOp, num_abandoned, take_sum_wait,
};
pub use host_copy::HostCopy;
#[cfg(feature = "fake-nccl")]
pub use memory::{count_memory, counted_memory};
pub use observe::{DeviceMemory, device_memory, reset_peak_memory};
#[cfg(feature = "nccl")]
pub use observe::{NcclVersions, nccl_versions};
pub use pipe::Pipe;
#[cfg(feature = "nccl")]
pub use process::num_gpus;
pub use process::{empty_cache, raise_descriptor_limit, set_device};
pub use recompute::recompute;
pub use reducer::{
    CommHook, PowerSgd, Reducer, ReducerOptions, backward, layout, set_grad, zero_grad,
};
pub use sharding::Sharding;
pub use store::Store;
pub use stream::{
    Event, HostSyncs, Stream, StreamGuard, host_syncs, upload, upload_bytes, watch_host_syncs,
};
pub use trace::{Recording, Trace};

#[cfg(test)]
mod tests;
