//! Settings under which a process outlives its NCCL groups: one that hangs is aborted once, by the trainer alone,
//! and the next is built in the same process. As `ProcessGroupNCCL.cpp` of PyTorch 2.11 and NCCL 2.28 read them,
//! when a group is built. They must stand in the environment that a process is started with: it has many
//! threads soon, and then nothing can be set safely.

use std::path::Path;

use crate::paths;

/// Names and values for the processes of the built-in trainer. What a user has set is to be left alone.
#[must_use]
pub fn settings(connect_timeout_seconds: u64) -> [(&'static str, String); 8] {
    let timeout = connect_timeout_seconds.to_string();
    let text = |(name, value): (&'static str, &str)| (name, value.to_owned());
    [
        // Its watchdog, by default, ends the process when a collective fails (3), or aborts the group itself (2),
        // and of two aborts each waits for the other. With 0 it only notes what it saw, which the trainer asks.
        text(("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")),
        // A second thread ends the process when the watchdog is stuck, as it may be while a group is aborted.
        text(("TORCH_NCCL_ENABLE_MONITORING", "0")),
        // A failure is written to the store, past the generation's prefix, for all to dump what they know. The
        // key stays there: the first group of a process that joins later would find it.
        text(("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")),
        // After a failure the watchdog sleeps four times this, by default a minute, with the lock that the next
        // collective needs.
        text(("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0")),
        // An exception on the watchdog's thread, say from an event of an aborted group, would end the process.
        // An error of the device comes to the training thread, too.
        text(("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0")),
        // Connecting holds the lock that an abort needs, by default for up to 30 minutes.
        ("TORCH_NCCL_NONBLOCKING_TIMEOUT", timeout),
        // All connections are made when a group is built, not within the first collective that needs them, where
        // an abort frees what the other thread uses.
        text(("NCCL_RUNTIME_CONNECT", "0")),
        // Multicast buffers (NVLink SHARP) are all ranks' together, and aborts are reported to hang over them.
        text(("NCCL_NVLS_ENABLE", "0")),
    ]
}

/// How much NCCL says of itself.
const NCCL_DEBUG: &str = "NCCL_DEBUG";
/// What it says something about.
const NCCL_DEBUG_SUBSYS: &str = "NCCL_DEBUG_SUBSYS";
/// The file into which it writes; not set: standard output.
pub const NCCL_DEBUG_FILE: &str = "NCCL_DEBUG_FILE";

/// Names and values that have NCCL write into the run directory how it connects, where the trainer reads it. Nothing
/// if `get` (`std::env::var_os`) knows any of the names: then users read it themselves.
#[must_use]
pub fn log_settings<T>(
    run_dir: &Path,
    local_rank: u32,
    get: impl Fn(&str) -> Option<T>,
) -> Vec<(&'static str, String)> {
    let file = paths::rank_nccl_log(run_dir, local_rank);
    let settings = [
        (NCCL_DEBUG, "INFO".to_owned()),
        (NCCL_DEBUG_SUBSYS, "INIT,NET".to_owned()),
        (NCCL_DEBUG_FILE, file.display().to_string()),
    ];
    if settings.iter().any(|(name, _)| get(name).is_some()) {
        return Vec::new();
    }
    settings.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_writes_into_the_run_directory_unless_the_user_has_said_otherwise() {
        let of = |set: &str| {
            let get = |name: &str| (name == set).then_some(());
            log_settings(Path::new("/run/roundhouse"), 2, get)
        };
        let file = "/run/roundhouse/rank-2.nccl.log".to_owned();
        assert!(of("PATH").contains(&(NCCL_DEBUG_FILE, file)));
        assert_eq!(of("PATH").len(), 3);
        for name in [NCCL_DEBUG, NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE] {
            assert!(of(name).is_empty(), "{name}");
        }
    }

    #[test]
    fn each_is_set_once_and_connecting_has_its_own_timeout() {
        let settings = settings(7);
        let names: std::collections::BTreeSet<_> = settings.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), settings.len());
        assert!(settings.contains(&("TORCH_NCCL_NONBLOCKING_TIMEOUT", "7".to_owned())));
    }
}
