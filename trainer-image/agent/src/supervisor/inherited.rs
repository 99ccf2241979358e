//! What processes that stay for all generations inherit from the agent besides their environment: the mode of new
//! files, and how many may be open. Scripts in mode Restart keep what their image and its runtime give them.

use roundhouse_contract::Mode;
use rustix::fs::Mode as FileMode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

/// Checkpoints and ledger are 0640 and their directories 0750: jobs of other groups that share a volume can neither
/// read nor replace them.
const UMASK: FileMode = FileMode::from_bits_truncate(0o027);

pub(super) fn prepare(mode: Mode) {
    if mode == Mode::Restart {
        return;
    }
    umask(UMASK);
    // Each pair of ranks has several connections, and the usual soft limit is 1024.
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        eprintln!("[agent] the limit of open files stays {current:?}: {error}");
    }
}
