//! How a process hears what it is to do: the membership file and the request to leave.

use std::path::Path;

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

/// How a process that is not alone hears of its peers, and meets them.
#[derive(Debug)]
pub struct Peers<R> {
    /// The membership file.
    pub watch: MembershipWatch,
    /// Where the ranks of a generation meet.
    pub rendezvous: R,
    /// Ends waits for peers that do not answer.
    pub interrupter: Interrupter,
}

impl<R> Peers<R> {
    /// Begins to watch the peers of a process; `watch` is of the same membership file. A process that should have left
    /// by now waits for them no longer.
    ///
    /// # Errors
    /// The operating system refused the thread that watches.
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

/// Tells the machine what has happened outside.
pub(crate) fn look<R>(machine: &mut Machine, peers: Option<&mut Peers<R>>, leave: &LeaveRequest) {
    match peers {
        Some(peers) => listen(machine, &mut peers.watch, leave),
        None if leave.is_made() => machine.apply(Event::LeaveRequested),
        None => {}
    }
}

/// Tells the machine what the membership file and the request to leave say.
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

/// Enters the lobby. First of all that a process does, before anything takes time: documents that are newer than
/// what the file holds now are for this process. A process that trains alone is given a generation at once, and has
/// no file to watch.
///
/// # Errors
/// A process that trains alone cannot read its volume.
pub fn enter(launch: &Launch) -> Result<(Machine, Option<MembershipWatch>), Failure> {
    Ok(match &launch.source {
        Source::Membership { file, .. } => {
            // A process that was started in place of another one may join whatever is newer than that one's last
            // generation, even if the document is there already.
            let (watch, seen_at_start) = match launch.last_seen_generation {
                None => MembershipWatch::start(file),
                Some(former) => (MembershipWatch::start_unread(file), former),
            };
            (Machine::new(launch.local_rank, seen_at_start), Some(watch))
        }
        Source::Alone => {
            let mut machine = Machine::new(0, 0);
            machine.see(&document(next_generation(launch)?, 0, 1));
            (machine, None)
        }
    })
}

/// Each start of a process that trains alone is a generation: the one after the newest that has
/// written checkpoints or a ledger.
fn next_generation(launch: &Launch) -> Result<u64, Failure> {
    let Some(settings) = &launch.checkpoint else {
        return Ok(1);
    };
    let directory = Directory::new(settings.dir.clone());
    Ok(newest_generation(&directory)? + 1)
}

/// What a membership file says to a worker of one process, as far as a process that is told by no operator reads it.
pub(crate) fn document(generation: u64, node_rank: u32, nodes: u32) -> Membership {
    Membership {
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
