//! The state of one worker, from its pod: alive, training, preparing or ended.

use roundhouse_contract::Action as MembershipAction;

use crate::observed::{Pod, PodPhase, Termination};

/// Whether the worker is alive and has been in a generation, so it may hold the state.
#[must_use]
pub fn is_survivor(pod: &Pod) -> bool {
    is_alive(pod) && has_joined(pod)
}

/// Whether the worker may hold a state. If a process of a sharded worker dies, all of them restart,
/// and the container continues without the state. Such a worker is not Ready before it is in a
/// generation again, so its agent keeps reporting this.
#[must_use]
pub fn may_hold_state(pod: &Pod) -> bool {
    let processes = pod.processes.as_ref().filter(|_| !pod.ready);
    is_survivor(pod) && !processes.is_some_and(|processes| processes.are_without_state)
}

/// Whether the running container has had a place in a generation.
#[must_use]
pub fn is_member_of_any(pod: &Pod) -> bool {
    has_joined(pod) && is_same_incarnation(pod)
}

/// Whether the pod's newest membership is not that of a leaver.
fn has_joined(pod: &Pod) -> bool {
    let document = pod.membership.as_ref();
    document.is_some_and(|document| document.action == MembershipAction::Join)
}

/// Whether a restarted process is not prepared yet. Its siblings hold the state and wait. A
/// generation with this worker would have to wait, too.
#[must_use]
pub fn is_preparing(pod: &Pod) -> bool {
    let processes = pod.processes.as_ref().filter(|_| !pod.ready);
    processes.is_some_and(|processes| processes.are_preparing)
}

/// How a process ended in the generation of the pod's membership although its container is still
/// alive. It may have ended in an earlier generation if no process has joined this one since: all
/// of a sharded worker were restarting when they got their place.
#[must_use]
pub fn end_in_place(pod: &Pod) -> Option<&Termination> {
    let document = pod.membership.as_ref()?;
    let processes = pod.processes.as_ref()?;
    let end = processes.end.as_ref()?;
    let words = end.message.as_ref()?;
    let is_of_this = words.generation == document.generation;
    // A worker whose processes are prepared may be about to join.
    let has_not_joined = processes.are_without_state && processes.are_preparing && !pod.ready;
    let is_of_earlier = has_not_joined && words.generation < document.generation;
    ((is_of_this || is_of_earlier) && is_alive(pod)).then_some(end)
}

/// Whether all processes of a sharded worker ended in the generation of the pod's membership. The
/// agent has restarted them, and they wait for the next generation without a state.
#[must_use]
pub fn has_lost_its_processes(pod: &Pod) -> bool {
    is_alive(pod) && !may_hold_state(pod) && end_in_place(pod).is_some()
}

/// Whether the containers of a pod may still run.
#[must_use]
pub fn may_hold_resources(pod: &Pod) -> bool {
    let runs = matches!(pod.phase, PodPhase::Pending | PodPhase::Running);
    pod.ours && runs && !(pod.deleting && pod.unreachable)
}

/// Whether the worker is ready to get a place in a generation.
#[must_use]
pub fn is_available(pod: &Pod) -> bool {
    pod.ready && pod.ip.is_some() && pod.phase == PodPhase::Running
}

/// Whether a pod's membership was written for the container that runs in it now.
#[must_use]
pub fn is_same_incarnation(pod: &Pod) -> bool {
    pod.membership
        .as_ref()
        .is_some_and(|m| pod.is_incarnation(&m.incarnation))
}

/// How the container that the pod's membership was written for ended, if it has.
#[must_use]
pub fn end_of_member(pod: &Pod) -> Option<&Termination> {
    let restarts = pod.membership.as_ref()?.incarnation.restarts;
    pod.container
        .termination
        .as_ref()
        .filter(|end| end.restarts == restarts)
}

/// Whether a member completed. A worker that was asked to leave has not, whatever its exit code is.
#[must_use]
pub fn has_succeeded(pod: &Pod) -> bool {
    // What reads the least memory comes first, here and in `is_alive`: most pods train.
    let has_completed = end_of_member(pod).is_some_and(|end| end.exit_code == 0);
    has_completed && has_joined(pod) && is_same_incarnation(pod)
}

/// Whether a member is alive and has not restarted since it got its place.
#[must_use]
pub fn is_alive(pod: &Pod) -> bool {
    pod.phase == PodPhase::Running && end_of_member(pod).is_none() && is_same_incarnation(pod)
}
