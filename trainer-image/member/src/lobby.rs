//! The lobby: how a process receives its membership and requests to leave.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use roundhouse_contract::membership::{Action as Instruction, Incarnation, Master, Membership};
use roundhouse_elastic::machine::Verdict;
use roundhouse_elastic::{Event, Machine};
use roundhouse_report::say_error;

use crate::checkpoint::Directory;
use crate::checkpoint::job::newest_generation;
use crate::failure::Failure;
use crate::interrupt::Interrupter;
use crate::launch::{Launch, Source};
use crate::membership::MembershipWatch;
use crate::signals::LeaveRequest;

/// The connections of a process to its peers.
#[derive(Debug)]
pub struct Peers<R> {
    /// Watch of the membership file.
    pub watch: MembershipWatch,
    /// The place where the ranks of a generation meet.
    pub rendezvous: R,
    /// Ends waits for peers that do not answer.
    pub interrupter: Interrupter,
}

impl<R> Peers<R> {
    /// Begins to watch the peers of a process. `watch` is a watch of the same membership file. A
    /// process that should have left by now stops waiting for its peers.
    ///
    /// # Errors
    /// [`Failure::Internal`] if the operating system refuses the thread.
    pub fn meet(
        membership_file: &Path,
        watch: MembershipWatch,
        rendezvous: R,
        leave: &LeaveRequest,
    ) -> Result<Self, Failure> {
        Ok(Self {
            watch,
            rendezvous,
            interrupter: Interrupter::start(membership_file, leave.clone())?,
        })
    }
}

/// Passes external events to the machine.
pub(crate) fn poll_inputs<R>(
    machine: &mut Machine,
    peers: Option<&mut Peers<R>>,
    leave: &LeaveRequest,
) {
    match peers {
        Some(peers) => listen(machine, &mut peers.watch, leave),
        None if leave.is_made() => machine.apply(Event::LeaveRequested),
        None => {}
    }
}

/// Passes the membership file and the request to leave to the machine.
pub(crate) fn listen(machine: &mut Machine, watch: &mut MembershipWatch, leave: &LeaveRequest) {
    if leave.is_made() {
        machine.apply(Event::LeaveRequested);
    }
    if let Some(document) = watch.poll()
        && machine.see(&document) == Verdict::Invalid
    {
        say_error(&format!(
            "membership has no place for this process: {document:?}"
        ));
    }
}

/// Enters the lobby. This must be the first action of a process, because documents that are newer
/// than the present one are for this process. A process that trains alone gets a generation at once
/// and has no file to watch.
///
/// # Errors
/// [`Failure::Volume`] if a process that trains alone cannot read its volume.
pub fn enter(launch: &Launch) -> Result<(Machine, Option<MembershipWatch>), Failure> {
    Ok(match &launch.source {
        Source::Membership { file, .. } => {
            // A process that replaces another may join any generation newer than that process' last
            // one, even if the document exists already.
            let (watch, seen_at_start) = match launch.last_seen_generation {
                None => MembershipWatch::start(file),
                Some(former) => (MembershipWatch::start_unread(file), former),
            };
            let pods = launch.replica_pods.as_ref();
            let watch = watch.of_life(pods.map_or("", |pods| &pods.life));
            (Machine::new(launch.local_rank, seen_at_start), Some(watch))
        }
        Source::Alone => {
            let mut machine = Machine::new(0, 0);
            machine.see(&document(next_generation(launch)?, 0, 1));
            (machine, None)
        }
    })
}

/// The last generation of this process in each directory.
static TAKEN: Mutex<BTreeMap<PathBuf, u64>> = Mutex::new(BTreeMap::new());

/// The generation of a process that trains alone: one more than the newest that has written
/// checkpoints or a ledger. A notebook may join again while threads of its former training have
/// written nothing yet, so the generations of this process count, too.
fn next_generation(launch: &Launch) -> Result<u64, Failure> {
    let Some(settings) = &launch.checkpoint else {
        return Ok(1);
    };
    let newest = newest_generation(&Directory::new(settings.dir.clone()))?;
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = taken.entry(settings.dir.clone()).or_default();
    *taken = newest.max(*taken) + 1;
    Ok(*taken)
}

/// A membership document for a worker of one process that no operator manages.
pub(crate) fn document(generation: u64, node_rank: u32, nodes: u32) -> Membership {
    Membership {
        life: String::new(),
        nonce: String::new(),
        generation,
        action: Instruction::Join,
        node_rank,
        nodes,
        procs_per_worker: 1,
        master: Master {
            address: String::new(),
            port: 0,
        },
        members: String::new(),
        incarnation: Incarnation {
            pod_uid: String::new(),
            restarts: 0,
        },
        issued_at: String::new(),
        repeats: 0,
    }
}

#[cfg(test)]
mod tests {
    use roundhouse_contract::environment::CheckpointEnvironment;

    use super::*;

    #[test]
    fn second_training_of_a_process_gets_a_newer_generation() {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("config");
        let mut launch = Launch::alone(config, directory.path().to_owned(), None);
        assert_eq!(next_generation(&launch).unwrap(), 1, "without a volume");
        launch.checkpoint = Some(CheckpointEnvironment {
            dir: directory.path().to_owned(),
            every_steps: None,
            every_seconds: None,
            keep: 2,
            best: None,
            job_uid: None,
            local: None,
        });
        for generation in 1..=3 {
            // No thread of the former training has written yet.
            assert_eq!(next_generation(&launch).unwrap(), generation);
        }
    }
}
