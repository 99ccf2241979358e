//! Nodes that are avoided for a while, since a worker failed there for a reason that is the node's.

use std::collections::{BTreeSet, HashSet};

use jiff::{SignedDuration, Timestamp};
use roundhouse_api::{AvoidedNode, FailureAction};

use crate::draft::Draft;
use crate::failures::policy::{Failure, is_recent};
use crate::observed::{Pod, PodPhase};
use crate::status::time;

/// Most nodes that are avoided at once; the schema's bound.
const MAX_NODES: usize = 64;
/// Longest reason; the schema's bound.
const MAX_REASON_BYTES: usize = 128;

/// Notes the nodes of failures that ask for it. The status says so before any pod is replaced.
pub(crate) fn avoid(draft: &mut Draft<'_>, failures: &[Failure<'_>]) {
    let wanted = failures
        .iter()
        .filter(|failure| failure.action == FailureAction::ReplaceAndAvoidNode)
        .filter(|failure| is_recent(failure, draft.job.avoid_node, draft.now));
    let now = draft.now;
    for failure in wanted {
        // One whose time is over may be kept for a pod that waits. It gives way to one that is avoided now.
        if draft.status.avoid_nodes.len() >= MAX_NODES {
            draft.status.avoid_nodes.retain(|node| node.until.0 > now);
        }
        let Some(node) = failure.pod.node.clone() else {
            continue;
        };
        let has_room = draft.status.avoid_nodes.len() < MAX_NODES;
        let known = draft.status.avoid_nodes.iter_mut().find(|n| n.node == node);
        let at = match (failure.at(), &known) {
            (Some(at), _) => at,
            (None, None) => draft.now,
            (None, Some(_)) => continue,
        };
        let span = SignedDuration::try_from(draft.job.avoid_node).unwrap_or_default();
        let until = at.saturating_add(span).unwrap_or(Timestamp::MAX);
        match known {
            Some(known) if known.until >= time(until) => {}
            Some(known) => known.until = time(until),
            // A worker for whose node there is no room is replaced all the same.
            None if !has_room => {}
            None => {
                draft.recorded = true;
                draft.status.avoid_nodes.push(AvoidedNode {
                    node,
                    reason: reason(failure),
                    until: time(until),
                });
            }
        }
    }
}

/// Forgets nodes whose time is over and that no pod is kept from any more, and wakes when the next one's time is over.
pub(crate) fn forget(draft: &mut Draft<'_>) {
    let now = draft.now;
    let pods = &draft.observed.pods;
    let is_needed =
        |node: &AvoidedNode| node.until.0 > now || pods.iter().any(|pod| waits(pod, node));
    draft.status.avoid_nodes.retain(is_needed);
    let times = draft.status.avoid_nodes.iter().map(|node| node.until.0);
    if let Some(next) = times.filter(|until| *until > now).min() {
        draft.requeue(next.duration_since(now).unsigned_abs());
    }
}

/// Whether a pod waits for a node since before the end of a node's time: it may be kept from that node.
fn waits(pod: &Pod, node: &AvoidedNode) -> bool {
    let waits = pod.ours && pod.node.is_none() && !pod.deleting && pod.phase == PodPhase::Pending;
    waits && pod.created_at.is_some_and(|at| at < node.until.0)
}

/// Whether a node is avoided no more that a pod which the scheduler cannot place may be kept from.
pub(crate) fn is_one_free_again(draft: &Draft<'_>, pod: &Pod) -> bool {
    let mut avoided = draft.observed.status.avoid_nodes.iter();
    avoided.any(|node| node.until.0 <= draft.now && waits(pod, node))
}

/// Whether the operator named a node in a pod that it would not name in a new one: the node was lost or avoided when the pod was
/// created, and is gone or back. Karpenter creates no node for such a pod. What the template or a webhook names does not count:
/// a new pod would name it again.
pub(crate) fn names_in_vain(draft: &Draft<'_>, pod: &Pod) -> bool {
    let Some(built_from) = &pod.built_from else {
        return false;
    };
    if built_from.named_nodes.is_empty() {
        return false;
    }
    let needed: HashSet<String> = avoided(draft).into_iter().chain(lost(draft)).collect();
    let mut named = built_from.named_nodes.iter();
    named.any(|node| !needed.contains(node))
}

/// The nodes that a new pod must not be placed on.
pub(crate) fn avoided(draft: &Draft<'_>) -> Vec<String> {
    let avoided = draft.status.avoid_nodes.iter();
    let avoided = avoided.filter(|node| node.until.0 > draft.now);
    avoided.map(|node| node.node.clone()).collect()
}

/// The nodes of the job's pods that do not answer, in order. The scheduler may hear of it later than the operator does, and
/// a pod that it places there meanwhile is never started.
pub(crate) fn lost(draft: &Draft<'_>) -> Vec<String> {
    let pods = draft.observed.pods.iter();
    let lost = pods.filter(|pod| pod.ours && pod.unreachable && !pod.agent_silent);
    let lost: BTreeSet<String> = lost.filter_map(|pod| pod.node.clone()).collect();
    lost.into_iter().collect()
}

fn reason(failure: &Failure<'_>) -> String {
    let own = failure.end.and_then(|end| end.message.as_ref());
    let pods = failure.pod.failed.as_ref();
    let pods = pods.map(|failed| failed.reason.clone());
    let containers = failure.end.map(|end| end.reason.clone());
    let mut reason = pods
        .or_else(|| own.map(|message| message.reason.as_str().to_owned()))
        .or(containers)
        .unwrap_or_default();
    reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
    reason
}
