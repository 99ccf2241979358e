//! Generations: all workers start together or not at all.
//!
//! The number is raised in the status, with the fingerprint of those it is for, and stored before any
//! pod hears of it; it is issued only to those. So whatever happens in between, one generation never
//! has two sets of members.

use roundhouse_api::{ConditionType, MembershipStatus};
use roundhouse_contract::{Action as MembershipAction, Master, Membership, ports};

use crate::decide::{Draft, event};
use crate::members::{has_succeeded, is_alive, is_available};
use crate::observed::Pod;
use crate::plan::{Action, EventType, PlanReason};
use crate::waiting;

/// Raises, issues or watches the newest generation, whatever is due.
pub(crate) fn form(draft: &mut Draft<'_>) -> PlanReason {
    if draft.members.is_intact() {
        let workers: Vec<&Pod> = draft.members.workers.values().copied().collect();
        let lacking: Vec<usize> = (0..workers.len())
            .filter(|at| !draft.members.is_member(workers[*at]))
            .collect();
        if lacking.is_empty()
            && workers
                .iter()
                .all(|pod| is_alive(pod) || has_succeeded(pod))
        {
            return training(draft);
        }
        if !lacking.is_empty() && lacking.iter().all(|at| is_available(workers[*at])) {
            return issue(draft, &workers, &lacking);
        }
    }
    if draft.members.all_in_lobby(draft.job) {
        return raise(draft);
    }
    waiting::explain(draft)
}

fn raise(draft: &mut Draft<'_>) -> PlanReason {
    let nodes = draft.job.replicas;
    let generation = draft.members.generation + 1;
    let world_size = nodes * draft.job.procs_per_worker;
    let members = draft.members.fingerprint();
    draft.status.membership = Some(MembershipStatus {
        generation,
        world_size,
        nodes,
        members,
    });
    let message = format!("generation {generation}: {nodes} workers, world size {world_size}");
    draft.running(false, "Forming", message);
    PlanReason::RaisingGeneration
}

fn issue(draft: &mut Draft<'_>, workers: &[&Pod], lacking: &[usize]) -> PlanReason {
    let generation = draft.members.generation;
    // Node rank 0 is the first worker; those with an address only are available, so it has one.
    let address = workers
        .first()
        .and_then(|pod| pod.ip.clone())
        .unwrap_or_default();
    let nodes = draft.job.replicas;
    for (place, at) in (0_u32..)
        .zip(0..workers.len())
        .filter(|(_, at)| lacking.contains(at))
    {
        let pod = workers[at];
        draft.actions.push(Action::IssueMembership {
            pod: pod.name.clone(),
            resource_version: pod.resource_version.clone(),
            membership: Membership {
                generation,
                action: MembershipAction::Join,
                node_rank: place,
                nodes,
                procs_per_worker: draft.job.procs_per_worker,
                master: Master {
                    address: address.clone(),
                    port: ports::RENDEZVOUS,
                },
                members: draft.members.raised_for.clone(),
                incarnation: pod.incarnation(),
                issued_at: crate::status::time(draft.now).0.to_string(),
            },
        });
    }
    let world = nodes * draft.job.procs_per_worker;
    let message = format!("generation {generation}: {nodes} workers, world size {world}");
    draft.running(false, "Forming", message);
    PlanReason::IssuingMembership
}

fn training(draft: &mut Draft<'_>) -> PlanReason {
    let generation = draft.members.generation;
    let nodes = draft.job.replicas;
    let world = nodes * draft.job.procs_per_worker;
    let message = format!("generation {generation}: {nodes} workers, world size {world}");
    if !draft.status.is_true(ConditionType::Running) {
        draft.events.push(event(
            EventType::Normal,
            "GenerationIssued",
            message.clone(),
        ));
    }
    draft.running(true, "Training", message);
    PlanReason::Training
}
