//! Writes of a pod's annotations and labels, each with its content version: see
//! [`crate::controller::slow_writes::Write::content_version`]. Pure, except for the time of issue.

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use roundhouse_contract::earlier::{self, Earlier};
use roundhouse_contract::{CopyPair, Membership, ReplicaPlace, gang, labels};
use roundhouse_planner::{Action, status};
use serde_json::{Value, json};

use super::writes::annotations;

/// The write of a pod's annotations or labels with the name of the pod, if the action is one.
pub(super) fn of(action: &Action) -> Result<Option<(&str, u64, Value)>, serde_json::Error> {
    let (pod, (content_version, patch)) = match action {
        Action::IssueMembership {
            pod,
            resource_version,
            membership,
            earlier,
        } => (pod, issued(resource_version, membership, earlier)?),
        Action::PlaceInReplica {
            pod,
            resource_version,
            place,
        } => (pod, placed(resource_version, place)?),
        Action::PairCopies {
            pod,
            resource_version,
            pair,
        } => (pod, paired(resource_version, pair.as_ref())?),
        Action::EndGroup {
            pod,
            resource_version,
        } => {
            let ends = annotations(resource_version, &[(gang::KUEUE_RETRIABLE, "false")]);
            (pod, (0, ends))
        }
        Action::LeaveDomain {
            pod,
            resource_version,
        } => (pod, (0, left_domain(resource_version))),
        Action::LabelReplica {
            pod,
            resource_version,
            replica,
        } => (pod, replica_label(resource_version, *replica)),
        Action::CreateService
        | Action::CreateNetworkPolicy
        | Action::RepairService { .. }
        | Action::RepairNetworkPolicy { .. }
        | Action::ApplyPodGroup { .. }
        | Action::DeletePodGroup { .. }
        | Action::CreateWorker { .. }
        | Action::DeletePod { .. }
        | Action::DeleteJob { .. } => return Ok(None),
    };
    Ok(Some((pod, content_version, patch)))
}

/// The write of the label that attracts no other pods to the pod's topology domain.
fn left_domain(resource_version: &str) -> Value {
    json!({"metadata": {
        "resourceVersion": resource_version,
        "labels": {labels::LEFT_DOMAIN: "true"},
    }})
}

/// The write of the label that says of which replica a pod is, and a number that differs between
/// replicas.
fn replica_label(resource_version: &str, replica: Option<u32>) -> (u64, Value) {
    let patch = json!({"metadata": {
        "resourceVersion": resource_version,
        "labels": {labels::REPLICA_INDEX: replica.map(|index| index.to_string())},
    }});
    (replica.map_or(0, |index| u64::from(index) + 1), patch)
}

/// Sets the time of issue. Many documents take time to write, and a worker's patience begins with
/// its own document.
fn dated(membership: &Membership) -> Membership {
    let mut document = membership.clone();
    if document.repeats == 0 {
        document.issued_at = status::time(Timestamp::now()).0.to_string();
    }
    document
}

/// A number that differs between the documents of one pod, for the first 65,535 repeats of the
/// document with a number.
fn content_version(number: u64, repeats: u32) -> u64 {
    number << 16 | u64::from(repeats.min(u32::from(u16::MAX)))
}

/// The write of a pod's membership, and a number that differs between its memberships.
fn issued(
    resource_version: &str,
    membership: &Membership,
    earlier: &[Earlier],
) -> Result<(u64, Value), serde_json::Error> {
    let text = dated(membership).to_json()?;
    let earlier = earlier::to_text(earlier);
    let both = [(labels::MEMBERSHIP, &*text), (labels::EARLIER, &*earlier)];
    let patch = annotations(resource_version, &both);
    let version = content_version(membership.generation, membership.repeats);
    Ok((version, patch))
}

/// The write of a pod's place in a replica, and a number that differs between the places of a pod.
fn placed(resource_version: &str, place: &ReplicaPlace) -> Result<(u64, Value), serde_json::Error> {
    let text = place.to_json()?;
    let patch = annotations(resource_version, &[(labels::REPLICA, &text)]);
    let version = content_version(place.number, place.repeats);
    Ok((version, patch))
}

/// The write of a pod's pair of copies, and a number that differs between pairs, their generations
/// and the end of a pair.
fn paired(
    resource_version: &str,
    pair: Option<&CopyPair>,
) -> Result<(u64, Value), serde_json::Error> {
    let text = pair.map(CopyPair::to_json).transpose()?.unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let patch = annotations(resource_version, &[(labels::COPY_PAIR, &text)]);
    Ok((hasher.finish(), patch))
}

#[cfg(test)]
mod tests {
    use roundhouse_contract::CopyRole;

    use super::*;

    #[test]
    fn writes_of_pairs_differ_by_their_content() {
        let pair = |generation: u64| CopyPair {
            id: "a1".to_owned(),
            role: CopyRole::Holder,
            peer: "digits-worker-1-0".to_owned(),
            address: "10.0.0.2".to_owned(),
            generation,
        };
        let documents = [None, Some(pair(0)), Some(pair(3))];
        let versions = documents.map(|it| paired("7", it.as_ref()).unwrap().0);
        assert_ne!(versions[0], versions[1]);
        assert_ne!(versions[1], versions[2]);
        let (version, patch) = paired("8", Some(&pair(3))).unwrap();
        assert_eq!(version, versions[2]);
        assert_eq!(patch["metadata"]["resourceVersion"], "8");
        let (_, end) = paired("8", None).unwrap();
        assert_eq!(end["metadata"]["annotations"][labels::COPY_PAIR], "");
    }
}
