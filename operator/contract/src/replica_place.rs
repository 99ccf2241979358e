//! The place of a pod in a replica of several pods (`workers.podsPerReplica`), for one life of the
//! replica.
//!
//! The processes of all pods of a replica hold one copy of the state together, so they start and
//! end together: that is a *life*. The operator writes the document as an annotation into each pod
//! of the replica, and a downward-API volume shows it as a file. The agent starts its processes
//! when it finds a life that no process of this pod has had, and ends them when it finds another.
//! Each life has an identifier that the processes prove to each other, so processes of two lives
//! never connect, whatever order the documents arrive in.

use serde::{Deserialize, Serialize};

use crate::{Incarnation, counter};

/// One pod's place in one life of its replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaPlace {
    /// Index of the replica in its job, from 0.
    pub replica: u32,
    /// Index of the pod in the replica, from 0.
    pub pod: u32,
    /// IP addresses of all pods of the replica, by their index in it.
    pub addresses: Vec<String>,
    /// For each pod of the replica, the index of the pod on another node that holds second copies
    /// of its part of the state; `None` if there is none. Empty if the job wants no such copies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Option<u32>>,
    /// Number of the life, from 1. It grows with each life of the replica, and decides if two pods
    /// claim one place.
    pub number: u64,
    /// Random identifier of the life: equal for all pods of the replica.
    pub life: String,
    /// The incarnation for which this document was written.
    pub incarnation: Incarnation,
    /// Time of issue (RFC 3339).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub issued_at: String,
    /// How often the operator has reissued it because it may not have arrived, see
    /// [`crate::Membership::repeats`].
    #[serde(default, skip_serializing_if = "counter::is_zero")]
    pub repeats: u32,
}

impl ReplicaPlace {
    /// Reads a document. Blank text, and text that is no document, means that the pod has no place.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let place: Self = serde_json::from_str(text).ok()?;
        let num_pods = place.addresses.len();
        let is_pod = |pod: &u32| (*pod as usize) < num_pods;
        let is_sound = is_pod(&place.pod)
            && !place.life.is_empty()
            && (place.holders.is_empty() || place.holders.len() == num_pods)
            && place.holders.iter().flatten().all(is_pod);
        is_sound.then_some(place)
    }

    /// Writes the document as JSON.
    ///
    /// # Errors
    /// Fails only if memory is exhausted.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> ReplicaPlace {
        ReplicaPlace {
            replica: 3,
            pod: 1,
            addresses: vec!["10.0.0.1".to_owned(), "10.0.0.2".to_owned()],
            holders: vec![Some(1), None],
            number: 7,
            life: "a1".to_owned(),
            incarnation: Incarnation {
                pod_uid: "u".to_owned(),
                restarts: 2,
            },
            issued_at: "2026-01-01T00:00:00Z".to_owned(),
            repeats: 1,
        }
    }

    #[test]
    fn place_in_a_replica_round_trips() {
        let text = place().to_json().unwrap();
        assert_eq!(ReplicaPlace::parse(&text), Some(place()));
    }

    #[test]
    fn damaged_places_are_no_places() {
        let outside = ReplicaPlace { pod: 2, ..place() };
        let nameless = ReplicaPlace {
            life: String::new(),
            ..place()
        };
        let [few, far] =
            [vec![None], vec![None, Some(2)]].map(|holders| ReplicaPlace { holders, ..place() });
        let texts = [outside, nameless, few, far].map(|place| place.to_json().unwrap());
        for text in ["", "{", "{}"]
            .into_iter()
            .chain(texts.iter().map(|it| &**it))
        {
            assert_eq!(ReplicaPlace::parse(text), None, "{text}");
        }
    }
}
