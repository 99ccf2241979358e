//! How a process group is built, and what it can compute.

use std::net::IpAddr;
use std::time::Duration;

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
    /// CPU tensors over TCP, with NCCL's ways to fail: for tests.
    #[cfg(feature = "fake-nccl")]
    FakeNccl,
}

impl Backend {
    /// Whether a collective that fails says so. NCCL's do not: a dead peer makes them hang until the group is
    /// aborted. Then they end as if all were well, with garbage; on a neighbour that has not aborted, too.
    #[must_use]
    pub const fn reports_failures(self) -> bool {
        matches!(self, Self::Gloo)
    }
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
    /// Port of the store that this process serves, if it serves one and the group meets in another.
    /// Connections to this port do not belong to the group.
    pub own_store_port: Option<u16>,
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
