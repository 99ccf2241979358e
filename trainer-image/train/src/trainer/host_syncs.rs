//! Finds calls in a step that make the host wait for the GPU. With `ROUNDHOUSE_HOST_SYNCS=warn` libtorch warns of each
//! on stderr, with `refuse` the call fails, and so does training. For tests on GPUs; it does nothing on CPUs.

use crate::failure::Failure;

/// Launches a step that is not the first of its generation.
#[cfg(feature = "nccl")]
pub(super) fn watched<T>(launch: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    use roundhouse_c10d::{HostSyncs, watch_host_syncs};

    let mode = match std::env::var("ROUNDHOUSE_HOST_SYNCS").as_deref() {
        Ok("warn") => HostSyncs::Warn,
        Ok("refuse") => HostSyncs::Refuse,
        _ => return launch(),
    };
    watch_host_syncs(mode)?;
    let launched = launch();
    watch_host_syncs(HostSyncs::Allow)?;
    launched
}

/// Launches a step.
#[cfg(not(feature = "nccl"))]
pub(super) fn watched<T>(launch: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    launch()
}
