//! Which pods are replaced by the next attempt of their worker, and when.
//!
//! A pod that is on its way out is replaced at once: it is no member any more, so its host name may be
//! shared for a while, and a replacement that needs its GPU waits in the scheduler's queue and nowhere else.
//! A pod that failed again and again is replaced less and less often, so that a node that refuses pods does
//! not swallow thousands.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::draft::Draft;
use crate::failures::nodes;
use crate::generation::beside;
use crate::generation::worker::has_succeeded;
use crate::observed::{Pod, PodPhase};
use crate::plan::DeleteReason;
use crate::status::time_left;

/// Wait before the second replacement in a row; it doubles from there.
const FIRST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// A pod that lived so long has shown that it can: the next wait is none.
const LONG_LIFE: SignedDuration = SignedDuration::from_mins(10);

/// How long a pod waits for a node before it is created again without the nodes that it names in vain: most pods find one sooner.
const SCALE_UP: Duration = Duration::from_secs(300);

/// Several nodes that are lost at once, and are more than one in so many of the job's nodes, are an outage.
const MANY: usize = 3;
/// How long the operator waits for a worker whose node has stopped answering, unless `nodes.lostSeconds` is set.
const SILENT: Duration = Duration::from_secs(60);

/// What becomes of a worker's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Stays,
    /// It is replaced, after this long.
    Later(Duration),
    /// It is replaced now.
    Goes(DeleteReason),
}

/// What becomes of the pod of a worker that is wanted.
pub(crate) fn fate(draft: &Draft<'_>, pod: &Pod) -> Fate {
    if is_spent(draft, pod) {
        return wait(pod, draft.now).map_or(Fate::Goes(DeleteReason::Replaced), Fate::Later);
    }
    if draft.members.is_condemned(pod) {
        // Failures before a worker's first generation are no incidents, so only this bounds them.
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
        // By another clock, which may be ahead.
        let made = pod.created_at.map_or(draft.now, |at| at.min(draft.now));
        let wait = time_left(made, SCALE_UP, draft.now);
        return wait.map_or(Fate::Goes(DeleteReason::Replaced), Fate::Later);
    }
    Fate::Stays
}

/// Whether a pod cannot take part any more: it failed for good, or ended without having trained, and a
/// completed pod is never restarted. A script that completed is needed again if its peers have not.
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

/// Whether its node does not answer while others do. When none does, the fault may be on our side: they may
/// well train on, and nothing is taken from them.
fn is_lost(draft: &Draft<'_>, pod: &Pod) -> bool {
    let answers = |pod: &&Pod| pod.phase == PodPhase::Running && !pod.unreachable;
    pod.unreachable && draft.members.workers.values().any(answers)
}

/// Time until a pod whose node does not answer is replaced; `None`: now. It is no member meanwhile, and is one again when its
/// node is back: a new pod would have to load everything. Longer, as long as Kubernetes lets pods stay on such a node, in an
/// outage, while the node's kubelet lives, and while nobody else has what the worker may train on with.
fn grace_left(draft: &Draft<'_>, pod: &Pod) -> Option<Duration> {
    let since = pod.ready_at.filter(|at| *at <= draft.now)?;
    let is_long = pod.node_answers
        || is_outage(draft)
        || beside::left(draft, &draft.members.able()).is_some();
    let short = draft.observed.lost_node_grace.unwrap_or(SILENT);
    let grace = if is_long { beside::GIVEN_UP } else { short };
    time_left(since, grace, draft.now)
}

/// Whether many nodes are lost at once: a zone that blinks comes back with all its workers.
fn is_outage(draft: &Draft<'_>) -> bool {
    let workers = draft.members.workers.values();
    let nodes: BTreeSet<&str> = workers
        .clone()
        .filter_map(|pod| pod.node.as_deref())
        .collect();
    let lost = workers.filter(|pod| pod.unreachable && !pod.agent_silent);
    let lost: BTreeSet<&str> = lost.filter_map(|pod| pod.node.as_deref()).collect();
    lost.len() >= 2 && lost.len() * MANY > nodes.len()
}

/// Time until a spent pod may be replaced; `None`: now. A function of the attempt and of what the pod's own
/// times say, so that it survives the operator.
fn wait(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let born = pod.created_at?;
    let end = pod.container.termination.as_ref();
    let end = end.and_then(|end| end.finished_at);
    let died = [end, pod.ready_at, pod.created_at].into_iter().flatten();
    // The first two are by the node's clock; what lies ahead says nothing.
    let died = died.filter(|at| *at <= now).max()?;
    if pod.attempt == 0 || died.duration_since(born) >= LONG_LIFE {
        return None;
    }
    let doublings = (pod.attempt - 1).min(16);
    let wait = (FIRST_WAIT * (1 << doublings)).min(LONGEST_WAIT);
    time_left(died, wait, now)
}
