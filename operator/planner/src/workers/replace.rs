//! Decides which pods the next attempt of their worker replaces, and when.
//!
//! A terminating pod is replaced at once. It is no longer a member, so two pods may share its host
//! name for a while, and a replacement that needs its GPU waits in the scheduler's queue. A pod
//! that fails repeatedly is replaced with a growing back-off, so a node that refuses pods does not
//! consume thousands of them.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::draft::Draft;
use crate::failures::nodes;
use crate::generation::beside;
use crate::observed::{Pod, PodPhase};
use crate::plan::DeleteReason;
use crate::status::time_left;
use crate::verdict::is_condemned;
use crate::worker_state::has_succeeded;

/// Pause before the second replacement in a row; it doubles from there.
const FIRST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// A pod that lived this long resets the back-off.
const LONG_LIFE: SignedDuration = SignedDuration::from_mins(10);

/// How long a pod waits for a node before it is created again without the exclusion of nodes that
/// need none: most pods find a node sooner.
const SCALE_UP: Duration = Duration::from_secs(300);

/// An outage: at least two nodes are lost at once, and more than one in `MANY` of the job's nodes.
const MANY: usize = 3;
/// How long the operator waits for a worker whose node has stopped answering, unless
/// `nodes.lostSeconds` is set.
const SILENT: Duration = Duration::from_secs(60);

/// The planner's decision about a worker's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Stays,
    /// The pod is replaced after this time.
    Later(Duration),
    /// The pod is replaced now.
    Goes(DeleteReason),
}

/// Decides about the pod of a wanted worker.
pub(crate) fn fate(draft: &Draft<'_>, pod: &Pod) -> Fate {
    if is_spent(draft, pod) {
        return wait(pod, draft.now).map_or(Fate::Goes(DeleteReason::Replaced), Fate::Later);
    }
    if is_condemned(draft.own_job, pod, draft.now) {
        // Failures before a worker's first generation are not incidents, so only this back-off
        // bounds them.
        let wait = wait(pod, draft.now).filter(|_| pod.membership.is_none());
        return wait.map_or(Fate::Goes(DeleteReason::BadNode), Fate::Later);
    }
    if is_lost(draft, pod) {
        let wait = grace_left(draft, pod);
        let reason = if pod.agent_silent {
            DeleteReason::AgentSilent
        } else {
            DeleteReason::NodeLost
        };
        return wait.map_or(Fate::Goes(reason), Fate::Later);
    }
    if pod.unschedulable.is_some() && nodes::is_one_free_again(draft, pod) {
        return Fate::Goes(DeleteReason::Replaced);
    }
    if pod.unschedulable.is_some() && nodes::names_in_vain(draft, pod) {
        // The time is from the API server's clock, which may be ahead.
        let made = pod.created_at.map_or(draft.now, |at| at.min(draft.now));
        let wait = time_left(made, SCALE_UP, draft.now);
        return wait.map_or(Fate::Goes(DeleteReason::Replaced), Fate::Later);
    }
    Fate::Stays
}

/// Whether a pod cannot take part any more: it failed, or it ended without having trained,
/// and the kubelet never restarts a completed pod. A completed script is needed again if its
/// peers have not completed.
fn is_spent(draft: &Draft<'_>, pod: &Pod) -> bool {
    let is_needed_again =
        || draft.job.program.own_command().is_some() && !draft.members.are_whole();
    match pod.phase {
        PodPhase::Failed => true,
        PodPhase::Succeeded => !has_succeeded(pod) || is_needed_again(),
        // A sidecar may keep its pod running.
        PodPhase::Pending | PodPhase::Running => has_succeeded(pod) && is_needed_again(),
    }
}

/// Whether the node of a pod does not answer while others do. If no node answers, the fault may be
/// on the operator's side: the workers may still train, so none is replaced.
fn is_lost(draft: &Draft<'_>, pod: &Pod) -> bool {
    let answers = |pod: &&Pod| pod.phase == PodPhase::Running && !pod.unreachable;
    pod.unreachable && draft.pods_by_index().values().any(answers)
}

/// Time until a pod whose node does not answer is replaced; `None` for now. Meanwhile it is not
/// a member, and becomes one again when its node returns, since a new pod would have to load
/// everything. The time is longer (as long as Kubernetes keeps pods on such a node) in an
/// outage, while the node's kubelet lives, and while no other worker holds the state with which
/// the pod may still train.
fn grace_left(draft: &Draft<'_>, pod: &Pod) -> Option<Duration> {
    let since = pod.ready_at.filter(|at| *at <= draft.now)?;
    let is_long = pod.node_answers
        || is_outage(draft)
        || beside::left(draft, &draft.members.able()).is_some();
    let short = draft.observed.lost_node_grace.unwrap_or(SILENT);
    let grace = if is_long { beside::GIVEN_UP } else { short };
    time_left(since, grace, draft.now)
}

/// Whether many nodes are lost at once: a zone that fails briefly returns with all its workers.
fn is_outage(draft: &Draft<'_>) -> bool {
    let workers = draft.pods_by_index().values();
    let nodes: BTreeSet<&str> = workers
        .clone()
        .filter_map(|pod| pod.node.as_deref())
        .collect();
    let lost = workers.filter(|pod| pod.unreachable && !pod.agent_silent);
    let lost: BTreeSet<&str> = lost.filter_map(|pod| pod.node.as_deref()).collect();
    lost.len() >= 2 && lost.len() * MANY > nodes.len()
}

/// Time until a spent pod may be replaced; `None` for now. It depends only on the attempt and on
/// times in the pod, so a restart of the operator does not change it.
fn wait(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let born = pod.created_at?;
    let end = pod.container.termination.as_ref();
    let end = end.and_then(|end| end.finished_at);
    let died = [end, pod.ready_at, pod.created_at].into_iter().flatten();
    // The first two times are from the node's clock; a time in the future says nothing.
    let died = died.filter(|at| *at <= now).max()?;
    if pod.attempt == 0 || died.duration_since(born) >= LONG_LIFE {
        return None;
    }
    let doublings = (pod.attempt - 1).min(16);
    let wait = (FIRST_WAIT * (1 << doublings)).min(LONGEST_WAIT);
    time_left(died, wait, now)
}
