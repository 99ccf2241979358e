//! How a process hears what it is to do: the membership file and the request to leave.

use roundhouse_contract::membership::{Action as Instruction, Incarnation, Master, Membership};
use roundhouse_elastic::machine::Verdict;
use roundhouse_elastic::{Event, Machine};

use super::Peers;
use crate::checkpoint::Directory;
use crate::failure::Failure;
use crate::interrupt::Interrupter;
use crate::launch::{Launch, Source};
use crate::membership::MembershipWatch;
use crate::rendezvous::Rendezvous;
use crate::report::say_error;
use crate::signals::LeaveRequest;

/// Tells the machine what has happened outside.
pub(super) fn look(machine: &mut Machine, peers: Option<&mut Peers>, leave: &LeaveRequest) {
    match peers {
        Some(peers) => listen(machine, &mut peers.watch, leave),
        None if leave.is_made() => machine.apply(Event::LeaveRequested),
        None => {}
    }
}

pub(super) fn listen(machine: &mut Machine, watch: &mut MembershipWatch, leave: &LeaveRequest) {
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

pub(super) fn enter_lobby(launch: &Launch) -> (Machine, Option<MembershipWatch>) {
    match &launch.source {
        Source::Membership { file, .. } => {
            let (watch, seen_at_start) = MembershipWatch::start(file);
            (Machine::new(launch.local_rank, seen_at_start), Some(watch))
        }
        Source::Alone => {
            let mut machine = Machine::new(0, 0);
            machine.see(&world_of_one(next_generation(launch)));
            (machine, None)
        }
    }
}

pub(super) fn meet_peers(launch: &Launch, watch: MembershipWatch) -> Result<Peers, Failure> {
    let Source::Membership {
        file,
        own_address,
        rendezvous_port,
    } = &launch.source
    else {
        return Err(Failure::Internal("a process alone has no peers".to_owned()));
    };
    let rendezvous = Rendezvous::open(
        *own_address,
        *rendezvous_port,
        launch.local_rank,
        launch.collective_timeout,
    )?;
    Ok(Peers {
        watch,
        rendezvous,
        interrupter: Interrupter::start(file)?,
    })
}

/// Each start of a process that trains alone is a generation: the one after the newest that has
/// written checkpoints or a ledger.
fn next_generation(launch: &Launch) -> u64 {
    let settings = launch.checkpoint.as_ref();
    let directory = settings.map(|settings| Directory::new(settings.dir.clone()));
    directory.map_or(0, |directory| directory.newest_generation()) + 1
}

/// What the membership file would say to a process that trains alone.
fn world_of_one(generation: u64) -> Membership {
    Membership {
        generation,
        action: Instruction::Join,
        node_rank: 0,
        nodes: 1,
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
    }
}
