//! Settings with which a process outlives its NCCL groups: only the trainer aborts a hung group,
//! once, and builds the next one in the same process. They follow `ProcessGroupNCCL.cpp` of PyTorch
//! 2.11 and NCCL 2.28, which read them when a group is built. They must be in the environment with
//! which a process starts: a process soon has many threads, and then variables cannot be set
//! safely.

use std::path::Path;

use crate::paths;

/// Names and values for the processes of the built-in trainer. Values that a user
/// has set take precedence.
#[must_use]
pub fn settings(connect_timeout_seconds: u64) -> [(&'static str, String); 8] {
    let timeout = connect_timeout_seconds.to_string();
    let text = |(name, value): (&'static str, &str)| (name, value.to_owned());
    [
        // By default the watchdog of the group ends the process when a collective fails (3), or
        // aborts the group itself (2), and two concurrent aborts wait for each other. With 0 it
        // only records the failure, which the trainer polls.
        text(("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")),
        // A monitoring thread ends the process when the watchdog is stuck, which is possible while
        // a group is aborted.
        text(("TORCH_NCCL_ENABLE_MONITORING", "0")),
        // A failure would be written to the store, outside the generation's prefix, so that all
        // ranks dump their state. The key would stay there, and the first group of a process that
        // joins later would find it.
        text(("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")),
        // After a failure the watchdog would sleep for four times this value, by default a minute,
        // and hold the lock that the next collective needs.
        text(("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0")),
        // An exception on the watchdog's thread, for example from an event of an aborted group,
        // would end the process. The training thread also receives errors of the device.
        text(("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0")),
        // Connecting holds the lock that an abort needs, by default for up to 30 minutes.
        ("TORCH_NCCL_NONBLOCKING_TIMEOUT", timeout),
        // Connect when a group is built, and not within the first collective that needs a
        // connection: there, an abort would free memory that the other thread uses.
        text(("NCCL_RUNTIME_CONNECT", "0")),
        // Multicast buffers (NVLink SHARP) belong to all ranks together, and aborts reportedly hang
        // over them.
        text(("NCCL_NVLS_ENABLE", "0")),
    ]
}

/// Log level of NCCL.
const NCCL_DEBUG: &str = "NCCL_DEBUG";
/// Subsystems that NCCL logs.
const NCCL_DEBUG_SUBSYS: &str = "NCCL_DEBUG_SUBSYS";
/// The file to which NCCL logs; if not set, standard output.
pub const NCCL_DEBUG_FILE: &str = "NCCL_DEBUG_FILE";

/// Names and values with which NCCL logs its connections to the run directory, where the
/// trainer reads them. Empty if `get` (`std::env::var_os`) knows any of the names: then the
/// user reads the log.
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
    fn nccl_logs_to_run_directory_unless_user_sets_variables() {
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
    fn nccl_settings_are_unique_with_connect_timeout() {
        let settings = settings(7);
        let names: std::collections::BTreeSet<_> = settings.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), settings.len());
        assert!(settings.contains(&("TORCH_NCCL_NONBLOCKING_TIMEOUT", "7".to_owned())));
    }
}
