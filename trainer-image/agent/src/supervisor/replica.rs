//! The processes of a sharded worker. Together they hold one copy of the state, as a replica, so
//! none of them can continue without the others. If one fails, the agent kills its siblings and
//! restarts all of them: that is another life of the replica.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use roundhouse_contract::{ExitCode, RankStatus, paths};

use crate::say::say;
use crate::verdict::End;

const SIGKILL: i32 = 9;
const SIGABRT: i32 = 6;

/// The replica of a sharded worker.
#[derive(Debug)]
pub(super) struct Replica {
    /// File with which the processes of this life find each other.
    file: PathBuf,
    /// Siblings that the agent killed because a process failed.
    killed: BTreeSet<u32>,
    /// Last statuses of the processes of this life that have failed or were killed.
    last: BTreeMap<u32, RankStatus>,
    /// Whether the end of this life is counted and reported.
    pub(super) is_reported: bool,
}

impl Replica {
    /// Begins a life: its processes have not started yet.
    pub(super) fn begin(run_dir: &Path) -> std::io::Result<Self> {
        Ok(Self::with(new_file(run_dir)?))
    }

    /// Begins a life with a file in the directory that it has claimed.
    pub(super) fn with(file: PathBuf) -> Self {
        Self {
            file,
            killed: BTreeSet::new(),
            last: BTreeMap::new(),
            is_reported: false,
        }
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Records that the agent kills these siblings of a process that failed.
    pub(super) fn kills(&mut self, siblings: impl Iterator<Item = u32>) {
        self.killed.extend(siblings);
    }

    /// Whether a process ended because the agent killed it.
    pub(super) fn has_killed(&self, local_rank: u32, end: End) -> bool {
        end == End::Signaled(SIGKILL) && self.killed.contains(&local_rank)
    }

    /// Keeps the last status of a process that has failed or was killed, and removes its file: a
    /// worker counts as ready only if all of its processes have a status.
    pub(super) fn bury(&mut self, run_dir: &Path, local_rank: u32, status: Option<RankStatus>) {
        self.last.extend(status.map(|status| (local_rank, status)));
        let _ = std::fs::remove_file(paths::rank_status(run_dir, local_rank));
    }

    /// Lets the processes that still run end their waits for others, which may never answer.
    pub(super) fn announce_end(&self) {
        let file = paths::end_of_life(&self.file);
        if let Err(error) = std::fs::write(&file, "") {
            say(&format!(
                "{}: {error}: processes that wait for another pod may not save their parts of the state",
                file.display()
            ));
        }
    }

    /// Returns the last status of a process that has failed or was killed.
    pub(super) fn last_status(&self, local_rank: u32) -> Option<&RankStatus> {
        self.last.get(&local_rank)
    }
}

/// Whether the siblings of a process with this end cannot continue. A process that leaves has asked
/// its siblings to leave, too, and they save their shards.
pub(super) fn breaks_replica(end: End) -> bool {
    !matches!(
        ExitCode::from_code(end.code()),
        Some(ExitCode::Done | ExitCode::Left)
    )
}

/// Order of processes that were found dead at the same time, by how likely each is the cause: a
/// process does not die by a signal because it lost a sibling, except by SIGABRT, with which c10d
/// ends a process when NCCL loses a peer.
pub(super) fn suspicion(end: End) -> u8 {
    match end {
        End::Signaled(signal) if signal != SIGABRT => 0,
        _ if end.is_peer_failure() => 2,
        End::Signaled(_) | End::Exited(_) => 1,
    }
}

/// Claims a path in the run directory that no other life has. The directory may hold those of a
/// former container, or may be new after one, so the number is the time, and the claim is a
/// directory that did not exist.
fn new_file(run_dir: &Path) -> std::io::Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(0));
    for life in now..=u64::MAX {
        if let Some(file) = claim(run_dir, &life.to_string())? {
            return Ok(file);
        }
    }
    Err(Error::from(ErrorKind::StorageFull))
}

/// Claims the directory of a life, and returns the file in it; `None` if processes of this pod have
/// had this life before.
pub(super) fn claim(run_dir: &Path, life: &str) -> std::io::Result<Option<PathBuf>> {
    let claim = paths::replica(run_dir, life);
    match std::fs::create_dir(&claim) {
        Ok(()) => Ok(Some(claim.join(paths::REPLICA_FILE))),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_life_has_a_file_of_its_own() {
        let run_dir = tempfile::tempdir().unwrap();
        let begin = || Replica::begin(run_dir.path()).unwrap();
        let lives = [begin(), begin(), begin()];
        let files: BTreeSet<&Path> = lives.iter().map(Replica::file).collect();
        assert_eq!(files.len(), lives.len());
        for file in files {
            assert!(!file.exists(), "a process creates it");
            std::fs::write(file, "").unwrap();
        }
        let before = begin();
        std::fs::remove_dir_all(run_dir.path()).unwrap();
        std::fs::create_dir(run_dir.path()).unwrap();
        assert_ne!(before.file(), begin().file(), "the directory is new");
        let missing = run_dir.path().join("missing");
        assert!(Replica::begin(&missing).is_err());
    }

    #[test]
    fn sibling_that_failed_was_not_killed() {
        let run_dir = tempfile::tempdir().unwrap();
        let mut replica = Replica::begin(run_dir.path()).unwrap();
        replica.kills([0, 2].into_iter());
        assert!(replica.has_killed(2, End::Signaled(9)));
        assert!(!replica.has_killed(2, End::Exited(65)), "ended before");
        assert!(!replica.has_killed(1, End::Signaled(9)), "the first one");
    }

    #[test]
    fn completed_and_leaving_processes_keep_their_siblings() {
        for (end, breaks) in [
            (End::Exited(0), false),
            (End::Exited(143), false),
            (End::Signaled(15), false),
            (End::Exited(1), true),
            (End::Exited(65), true),
            (End::Exited(75), true),
            (End::Signaled(9), true),
        ] {
            assert_eq!(breaks_replica(end), breaks, "{end:?}");
        }
    }

    #[test]
    fn killed_process_explains_errors_of_its_siblings() {
        let mut found = [
            End::Exited(75),
            End::Signaled(6),
            End::Exited(1),
            End::Signaled(9),
        ];
        found.sort_by_key(|end| suspicion(*end));
        assert_eq!((found[0], found[3]), (End::Signaled(9), End::Exited(75)));
    }
}
