//! Nodes on which a worker failed because of the node, and which the job avoids for some time.

use std::collections::{BTreeSet, HashSet};

use jiff::{SignedDuration, Timestamp};
use roundhouse_api::{AvoidedNode, FailureAction};

use crate::draft::Draft;
use crate::observed::{Pod, PodPhase};
use crate::status::time;
use crate::verdict::{Failure, is_recent};

/// Most nodes that a job avoids at once; the schema's bound.
const MAX_NODES: usize = 64;
/// Longest reason in bytes; the schema's bound.
const MAX_REASON_BYTES: usize = 128;

/// Adds the nodes of failures whose action asks for it. The status stores them before
/// any pod is replaced.
pub(crate) fn avoid(draft: &mut Draft<'_>, failures: &[Failure<'_>]) {
    let wanted = failures
        .iter()
        .filter(|failure| failure.action == FailureAction::ReplaceAndAvoidNode)
        .filter(|failure| is_recent(failure, draft.job.avoid_node, draft.now));
    let now = draft.now;
    for failure in wanted {
        // An expired entry may be kept for a pod that waits. It gives way to a new entry.
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
            // The worker is replaced even if there is no room for its node.
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

/// Removes expired nodes that no waiting pod was built to avoid, and requeues the job when
/// the next entry expires.
pub(crate) fn forget(draft: &mut Draft<'_>) {
    let now = draft.now;
    let pods = draft.pods;
    let is_needed =
        |node: &AvoidedNode| node.until.0 > now || pods.iter().any(|pod| waits(pod, node));
    draft.status.avoid_nodes.retain(is_needed);
    let times = draft.status.avoid_nodes.iter().map(|node| node.until.0);
    if let Some(next) = times.filter(|until| *until > now).min() {
        draft.requeue(next.duration_since(now).unsigned_abs());
    }
}

/// Whether a pod has waited for a node since before this entry expired: its affinity
/// may exclude the node.
fn waits(pod: &Pod, node: &AvoidedNode) -> bool {
    let waits = pod.ours && pod.node.is_none() && !pod.deleting && pod.phase == PodPhase::Pending;
    waits && pod.created_at.is_some_and(|at| at < node.until.0)
}

/// Whether an avoided node has expired which this unschedulable pod may still exclude.
pub(crate) fn is_one_free_again(draft: &Draft<'_>, pod: &Pod) -> bool {
    let mut avoided = draft.observed.status.avoid_nodes.iter();
    avoided.any(|node| node.until.0 <= draft.now && waits(pod, node))
}

/// Whether the operator excluded a node in this pod that it would not exclude in a new one: the
/// node was lost or avoided when the pod was created, and is now deleted or healthy. Karpenter
/// creates no node for such a pod. Nodes that the template or a webhook names do not count, since a
/// new pod would name them again.
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

/// The avoided nodes, which a new pod must exclude.
pub(crate) fn avoided(draft: &Draft<'_>) -> Vec<String> {
    let avoided = draft.status.avoid_nodes.iter();
    let avoided = avoided.filter(|node| node.until.0 > draft.now);
    avoided.map(|node| node.node.clone()).collect()
}

/// The nodes of the job's pods that do not answer, sorted. The scheduler may learn this later than
/// the operator does, and a pod that it places there meanwhile never starts.
pub(crate) fn lost(draft: &Draft<'_>) -> Vec<String> {
    let pods = draft.pods.iter();
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
