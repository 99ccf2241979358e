//! Generations: which workers train together next, and when.
//!
//! The operator first raises a generation in the status, with the fingerprints of its members and
//! of their order, and stores it before any pod receives it. It issues the generation only to those
//! members and in that order. So even if the operator crashes in between, or two operators work at
//! once, one generation never has two sets of members, and no rank has two holders. A generation
//! that cannot be completed is followed by the next one, which is always safe.

use std::time::Duration;

use roundhouse_api::{ConditionReason, ConditionType, EventReason, MembershipStatus};
use roundhouse_contract::{Action as Instruction, Master, Membership, ports};

use crate::draft::{Draft, event};
use crate::failures::newcomers;
use crate::generation::beside;
use crate::generation::copies;
use crate::generation::copy_pairs;
use crate::generation::members::{fingerprint, order};
use crate::generation::stranded;
use crate::observed::Pod;
use crate::plan::{Action, PlanReason};
use crate::status::checkpoint;
use crate::status::progress;
use crate::status::waiting;
use crate::status::{counted, time_left};
use crate::worker_state::{has_lost_its_processes, is_alive, is_survivor};

/// Time that a restarted operator needs to learn which agents do not answer.
const UNTIL_AGENTS_ARE_KNOWN: Duration = Duration::from_secs(30);

/// Raises, issues or watches the newest generation, as needed.
pub(crate) fn form(draft: &mut Draft<'_>) -> PlanReason {
    let able = draft.members.able();
    // Beside newcomers, these may be survivors of an earlier generation that could not be reached.
    let (members, joining): (Vec<&Pod>, Vec<&Pod>) = able
        .iter()
        .copied()
        .partition(|pod| draft.members.is_member(pod) && is_alive(pod));
    let raised_for = &draft.members.raised_for;
    let exists = draft.members.generation > 0;
    if exists && fingerprint(&members) == *raised_for {
        let may_grow = joining.iter().any(|pod| may_join(draft, pod));
        let grows = may_grow && !progress::is_complete(draft) && is_due(draft, &able, &joining);
        if grows || is_behind(draft) || stranded::first(draft).is_some() {
            return next(draft, &able);
        }
        return training(draft, members.len());
    }
    if exists && fingerprint(&able) == *raised_for {
        return match draft.members.in_raised_order(&able) {
            Some(placed) if !is_behind(draft) => issue(draft, &placed),
            // Raising the next generation is always safe.
            Some(_) | None => next(draft, &able),
        };
    }
    let survivors = able.iter().any(|pod| is_survivor(pod));
    // Members that cannot be reached may still train: new workers must not start beside them.
    let members = draft.members.that_live();
    let all_lost = !members.is_empty() && members.into_iter().all(has_lost_its_processes);
    if !survivors && !all_lost && draft.members.are_whole() {
        return waiting::explain(draft, able.len());
    }
    let enough = able.len() as u64 >= u64::from(draft.job.min_replicas);
    // Survivors of a broken generation do not wait. The first generation waits for late workers.
    if enough && (survivors || is_due(draft, &able, &able)) {
        return next(draft, &able);
    }
    waiting::explain(draft, able.len())
}

/// Raises the next generation, unless another generation that shares no member with it may still
/// train or save its state, or a worker returns with a copy of a newer state.
fn next(draft: &mut Draft<'_>, members: &[&Pod]) -> PlanReason {
    let left = beside::left(draft, members).max(beside::saving(draft, members));
    if left.is_none()
        && let Some(reason) = copies::wait(draft, members)
    {
        return reason;
    }
    match left {
        None => raise(draft, members),
        Some(left) => {
            if left < Duration::MAX {
                draft.requeue(left);
            }
            waiting::explain(draft, members.len())
        }
    }
}

/// Whether a running generation may be interrupted for this worker. A worker that is not Ready may
/// be frozen, and an operator that has just started does not know that yet.
fn may_join(draft: &mut Draft<'_>, pod: &Pod) -> bool {
    let since = draft.observed.watched_since.filter(|_| !pod.ready);
    let left = since.and_then(|since| time_left(since, UNTIL_AGENTS_ARE_KNOWN, draft.now));
    if let Some(left) = left {
        draft.requeue(left);
    }
    left.is_none()
}

/// Whether a pod follows a generation that the API server does not know, because the API server was
/// restored from an older state.
const fn is_behind(draft: &Draft<'_>) -> bool {
    draft.members.newest_seen > draft.members.generation
}

/// Whether the workers that would join have waited for the join window, so that the job grows in
/// batches.
fn is_due(draft: &mut Draft<'_>, able: &[&Pod], joining: &[&Pod]) -> bool {
    if able.len() as u64 >= u64::from(draft.job.replicas) {
        return true;
    }
    let Some(first) = joining.iter().map(|pod| pod.ready_at).min().flatten() else {
        return true;
    };
    // The time is from the node's clock, which may be ahead.
    let left = time_left(first, draft.job.join_window, draft.now)
        .filter(|left| *left <= draft.job.join_window);
    if let Some(left) = left {
        draft.requeue(left);
    }
    left.is_none()
}

fn raise(draft: &mut Draft<'_>, members: &[&Pod]) -> PlanReason {
    let nodes = count(members.len());
    let generation = draft.members.newest_seen + 1;
    draft.status.membership = Some(MembershipStatus {
        generation,
        world_size: nodes * draft.job.procs_per_worker,
        nodes,
        members: fingerprint(members),
        order: order(members),
        nonce: draft.observed.nonce.clone(),
        completed: String::new(),
        formed: draft.members.formed,
    });
    let message = sentence(draft, generation, nodes);
    draft.running(false, ConditionReason::Forming, message);
    PlanReason::RaisingGeneration
}

fn issue(draft: &mut Draft<'_>, members: &[&Pod]) -> PlanReason {
    let generation = draft.members.generation;
    let nodes = count(members.len());
    // Each able pod has an address. Node rank 0 hosts the store.
    let address = members.first().and_then(|pod| pod.ip.clone());
    let master = Master {
        address: address.unwrap_or_default(),
        port: ports::RENDEZVOUS,
    };
    for (place, pod) in (0_u32..).zip(members) {
        if !draft.members.is_member(pod) {
            let document = document(draft, pod, Instruction::Join, place, nodes, &master);
            draft.actions.push(document);
        }
    }
    dismiss(draft, nodes, &master);
    let message = sentence(draft, generation, nodes);
    draft.running(false, ConditionReason::Forming, message);
    PlanReason::IssuingMembership
}

/// Terminating members of the previous generation receive the new one, too. So they leave at a step
/// boundary, and the others lose no step.
fn dismiss(draft: &mut Draft<'_>, nodes: u32, master: &Master) {
    let generation = draft.members.generation;
    let leavers: Vec<&Pod> = draft
        .observed
        .pods
        .iter()
        .filter(|pod| pod.ours && pod.deleting && is_survivor(pod))
        .filter(|pod| {
            pod.membership
                .as_ref()
                .is_some_and(|m| m.generation < generation)
        })
        .collect();
    for pod in leavers {
        let document = document(draft, pod, Instruction::Leave, 0, nodes, master);
        draft.actions.push(document);
    }
}

fn document(
    draft: &Draft<'_>,
    pod: &Pod,
    action: Instruction,
    node_rank: u32,
    nodes: u32,
    master: &Master,
) -> Action {
    Action::IssueMembership {
        pod: pod.name.clone(),
        resource_version: pod.resource_version.clone(),
        membership: Membership {
            generation: draft.members.generation,
            action,
            node_rank,
            nodes,
            procs_per_worker: draft.job.procs_per_worker,
            master: master.clone(),
            members: draft.members.raised_for.clone(),
            nonce: draft.members.nonce.clone(),
            // `Replicas::expand` sets it.
            life: String::new(),
            incarnation: pod.incarnation(),
            issued_at: crate::status::time(draft.now).0.to_string(),
            repeats: 0,
        },
        earlier: match action {
            Instruction::Join => beside::kept(draft.members.holders(), pod),
            Instruction::Leave => Vec::new(),
        },
    }
}

fn training(draft: &mut Draft<'_>, members: usize) -> PlanReason {
    let mut message = sentence(draft, draft.members.generation, count(members));
    let missing = if members < draft.job.replicas as usize {
        Some("more are wanted")
    } else if draft.members.num_spares() < draft.job.spares as usize {
        Some("a spare is missing")
    } else {
        None
    };
    if let Some(missing) = missing
        && let Some(trouble) = trouble(draft)
    {
        message = format!("{message}; {missing}: {trouble}");
    }
    message += &copy_pairs::warning(draft);
    message += &checkpoint::warning(&draft.status);
    if !draft.status.is_true(ConditionType::Running) {
        let issued = event(EventReason::GenerationIssued, message.clone());
        draft.events.push(issued);
    }
    draft.running(true, ConditionReason::Training, message);
    PlanReason::Training
}

/// Why a wanted worker is missing.
fn trouble(draft: &mut Draft<'_>) -> Option<String> {
    let left_out = newcomers::report_left_out(draft);
    left_out.or_else(|| waiting::first_trouble(draft).map(|(_, trouble)| trouble))
}

fn sentence(draft: &Draft<'_>, generation: u64, nodes: u32) -> String {
    let world = nodes * draft.job.procs_per_worker;
    let workers = counted(nodes, "worker");
    format!("generation {generation}: {workers}, world size {world}")
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
