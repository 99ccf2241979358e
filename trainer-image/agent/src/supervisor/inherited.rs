//! What processes of mode `InProcess` inherit from the agent besides their environment: the mode of
//! new files and the limit of open files. Scripts in mode Restart keep the values of their image
//! and runtime.

use roundhouse_contract::Mode;
use rustix::fs::Mode as FileMode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

use crate::say::say;

/// Checkpoints and ledger get mode 0640 and their directories 0750, so jobs of other groups that
/// share a volume can neither read nor replace them.
const UMASK: FileMode = FileMode::from_bits_truncate(0o027);

pub(super) fn prepare(mode: Mode) {
    if mode == Mode::Restart {
        return;
    }
    umask(UMASK);
    // Each pair of ranks has several connections, and the usual soft limit is 1024.
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: Some(wanted(current, maximum)),
        maximum,
    };
    if current != raised.current
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        say(&format!(
            "cannot raise the limit of open files from {current:?}: {error}"
        ));
    }
}

/// Some runtimes allow 2^30 files. A library that closes all of them before it starts a
/// program would take minutes.
const MOST_FILES: u64 = 1 << 20;

/// The soft limit of open files, raised up to [`MOST_FILES`]; `None` means no limit.
fn wanted(current: Option<u64>, maximum: Option<u64>) -> u64 {
    let most = maximum.map_or(MOST_FILES, |maximum| maximum.min(MOST_FILES));
    current.map_or(most, |current| current.min(MOST_FILES).max(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_limited_to_a_million() {
        for (current, maximum, expected) in [
            (Some(1_024), Some(4_096), 4_096),
            (Some(1_024), Some(1 << 30), MOST_FILES),
            (Some(1 << 30), Some(1 << 30), MOST_FILES),
            (None, None, MOST_FILES),
            (Some(1_024), None, MOST_FILES),
        ] {
            assert_eq!(wanted(current, maximum), expected);
        }
    }
}
