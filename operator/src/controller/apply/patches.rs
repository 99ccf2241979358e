//! Writes of a pod's annotations and labels, each with its content version: see
//! [`crate::controller::slow_writes::Write::content_version`]. Pure, except for the time of issue.

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use roundhouse_contract::earlier::{self, Earlier};
use roundhouse_contract::{CopyPair, Membership, ReplicaPlace, labels};
use roundhouse_planner::status;
use serde_json::{Value, json};

use super::writes::annotations;

/// The write of the label that attracts no other pods to the pod's topology domain.
pub(super) fn left_domain(resource_version: &str) -> Value {
    json!({"metadata": {
        "resourceVersion": resource_version,
        "labels": {labels::LEFT_DOMAIN: "true"},
    }})
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
pub(super) fn issued(
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
pub(super) fn placed(
    resource_version: &str,
    place: &ReplicaPlace,
) -> Result<(u64, Value), serde_json::Error> {
    let text = place.to_json()?;
    let patch = annotations(resource_version, &[(labels::REPLICA, &text)]);
    let version = content_version(place.number, place.repeats);
    Ok((version, patch))
}

/// The write of a pod's pair of copies, and a number that differs between pairs, their generations
/// and the end of a pair.
pub(super) fn paired(
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
