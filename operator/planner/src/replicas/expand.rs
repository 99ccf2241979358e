//! Turns the actions for a replica into those for its pods.

use std::cmp::Reverse;
use std::collections::HashMap;

use roundhouse_contract::Membership;
use roundhouse_contract::earlier::{Earlier, MAX_EARLIER};

use super::{Replica, Replicas};
use crate::generation::copies::Holders;
use crate::generation::{beside, copies};
use crate::observed::Pod;
use crate::plan::{Action, DeleteReason, MAX_ACTIONS, Plan};
use crate::validate::ValidatedJob;
use crate::worker_state::is_same_incarnation;
use crate::workers::delete::delete;

impl Replicas<'_> {
    /// Replaces the actions that concern replicas.
    pub(crate) fn expand(&self, job: &ValidatedJob, plan: &mut Plan) {
        let is_for_replicas = |action: &Action| {
            matches!(
                action,
                Action::IssueMembership { .. } | Action::DeletePod { .. }
            )
        };
        if !plan.actions.iter().any(is_for_replicas) {
            return plan.actions.truncate(MAX_ACTIONS);
        }
        let status = plan.status.membership.as_ref();
        let holders = Holders {
            formed: status.map_or(0, |status| status.formed),
            keep_copies: copies::are_kept(job),
        };
        let by_version: HashMap<String, &Replica<'_>> = self.versioned().collect();
        let actions = std::mem::take(&mut plan.actions);
        for action in actions {
            match action {
                Action::IssueMembership {
                    resource_version,
                    membership,
                    earlier,
                    pod: _,
                } => {
                    if let Some(replica) = by_version.get(&resource_version) {
                        let issued = issue(replica, &membership, &earlier, holders);
                        plan.actions.extend(issued);
                    }
                }
                Action::DeletePod {
                    pod,
                    uid,
                    resource_version,
                    reason,
                } => {
                    let version = resource_version.as_deref().unwrap_or_default();
                    match by_version.get(version) {
                        Some(replica) => plan.actions.extend(delete_all(replica, reason)),
                        None => plan.actions.push(Action::DeletePod {
                            pod,
                            uid,
                            resource_version,
                            reason,
                        }),
                    }
                }
                other => plan.actions.push(other),
            }
        }
        plan.actions.truncate(MAX_ACTIONS);
    }
}

/// Gives each pod of a replica its place in a generation, unless it has it.
fn issue(
    replica: &Replica<'_>,
    membership: &Membership,
    earlier: &[Earlier],
    holders: Holders,
) -> Vec<Action> {
    let size = u32::try_from(replica.pods.len()).unwrap_or(u32::MAX).max(1);
    let life = replica.present().find_map(|pod| pod.replica.as_ref());
    let life = life.map(|place| place.life.clone()).unwrap_or_default();
    let earlier: Vec<Earlier> = earlier
        .iter()
        .map(|it| Earlier {
            nodes: it.nodes.saturating_mul(size),
            ..*it
        })
        .collect();
    let places = (0..size).zip(&replica.pods);
    let places = places.filter_map(|(place, pod)| Some((place, (*pod)?)));
    places
        .filter(|(_, pod)| !has(pod, membership))
        .map(move |(place, pod)| Action::IssueMembership {
            pod: pod.name.clone(),
            resource_version: pod.resource_version.clone(),
            membership: Membership {
                node_rank: membership
                    .node_rank
                    .saturating_mul(size)
                    .saturating_add(place),
                nodes: membership.nodes.saturating_mul(size),
                procs_per_worker: membership.procs_per_worker / size,
                life: life.clone(),
                incarnation: pod.incarnation(),
                ..membership.clone()
            },
            earlier: kept(pod, &earlier, holders),
        })
        .collect()
}

/// The earlier generations of a pod: those of its replica, and its own. After an issue that reached
/// some of the pods only, these differ.
fn kept(pod: &Pod, of_replica: &[Earlier], holders: Holders) -> Vec<Earlier> {
    let own = beside::kept(holders, pod);
    let all = of_replica.iter().copied().chain(own);
    let mut kept: Vec<Earlier> = all.collect();
    // An entry with nodes says more than one without.
    kept.sort_unstable_by_key(|it| (it.generation, Reverse(it.nodes)));
    kept.dedup_by_key(|it| it.generation);
    let keeps_copy = kept.first().is_some_and(|it| it.nodes == 0);
    let first = usize::from(keeps_copy);
    let surplus = kept.len().saturating_sub(MAX_EARLIER);
    kept.drain(first..first + surplus);
    kept
}

/// Whether the pod has this place already, or one in a newer generation.
fn has(pod: &Pod, membership: &Membership) -> bool {
    let document = pod.membership.as_ref().filter(|_| is_same_incarnation(pod));
    document.is_some_and(|document| {
        let is_same = document.members == membership.members
            && document.action == membership.action
            && document.repeats >= membership.repeats;
        document.generation > membership.generation
            || document.generation == membership.generation && is_same
    })
}

fn delete_all(replica: &Replica<'_>, reason: DeleteReason) -> impl Iterator<Item = Action> {
    let pods = replica.present().filter(|pod| !pod.deleting);
    pods.map(move |pod| delete(pod, reason))
}
