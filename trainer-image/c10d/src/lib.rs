//! Safe Rust over libtorch's own c10d: store, process groups, collectives and the Reducer of
//! `DistributedDataParallel`.
//!
//! Three floors: `src/bridge` is a C ABI that catches every C++ exception; `ffi` declares it; the
//! public types check tensors before they call. A call never panics: what goes wrong is an
//! [`Error`]. An exception on one of the library's own threads ends the process all the same, so
//! the death of a process must always be survivable.

mod connections;
mod error;
mod ffi;
mod group;
mod process;
mod reducer;
mod store;
mod tensors;

pub use error::{Error, ErrorKind, Result};
#[cfg(feature = "fake-nccl")]
pub use group::fake_nccl_aborts;
pub use group::{Backend, GroupOptions, ProcessGroup, ReduceOp};
pub use process::{raise_descriptor_limit, set_device};
pub use reducer::{CommHook, Reducer, ReducerOptions, backward, zero_grad};
pub use store::Store;

#[cfg(test)]
mod tests;
