//! Options of a process group, and the operations of an all-reduce.

use std::net::IpAddr;
use std::time::Duration;

/// The library that moves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Moves CPU tensors over TCP.
    Gloo,
    /// Moves CUDA tensors between GPUs.
    #[cfg(feature = "nccl")]
    Nccl {
        /// Index of this rank's GPU.
        device: u16,
    },
    /// Moves CPU tensors over TCP and fails like NCCL, for tests.
    #[cfg(feature = "fake-nccl")]
    FakeNccl,
}

impl Backend {
    /// Whether a failed collective returns an error. NCCL's collectives do not: if a peer dies,
    /// they hang until the group is aborted. Then they return success with garbage, possibly also
    /// on a neighbour that has not aborted.
    #[must_use]
    pub const fn reports_failures(self) -> bool {
        matches!(self, Self::Gloo)
    }
}

/// Options for creating a process group.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// The library that moves the data.
    pub backend: Backend,
    /// A collective fails if a peer does not answer for this long.
    pub timeout: Duration,
    /// Address of this process, on which Gloo listens.
    pub address: IpAddr,
    /// Port of the store that this process serves, if the group uses another store. Connections to
    /// this port do not belong to the group.
    pub own_store_port: Option<u16>,
    /// Name of the group in messages.
    pub name: String,
}

/// The operation of an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// Sum over all ranks.
    Sum,
    /// Minimum over all ranks.
    Min,
    /// Maximum over all ranks.
    Max,
}
