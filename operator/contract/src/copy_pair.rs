//! Which other pod holds second copies of the state of a worker of one pod
//! (`checkpoint.local.peerCopies`).
//!
//! One spare on another node is the *holder* of the worker with node rank 0. The operator writes
//! the document as an annotation into both pods, first into that of the holder, and a downward-API
//! volume shows it as a file. Their processes watch the file: those of the holder take copies while
//! they are in the lobby, and those of the worker send them. A replica of several pods has
//! [`crate::ReplicaPlace::holders`] instead.

use serde::{Deserialize, Serialize};

use crate::counter;

/// One pod's side of a pair of a worker and its holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CopyPair {
    /// Random identifier, equal in both pods and unknown to clients that may not read them. The
    /// holder takes copies only from processes that name it.
    pub id: String,
    /// What this pod does.
    pub role: CopyRole,
    /// Name of the other pod.
    pub peer: String,
    /// IP address of the other pod.
    pub address: String,
    /// In the holder: the newest generation of whose state it is known to have a whole copy; 0 if
    /// none is known.
    #[serde(
        default,
        skip_serializing_if = "counter::is_zero",
        deserialize_with = "counter::read"
    )]
    pub generation: u64,
}

/// What a pod of a pair does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyRole {
    /// It trains, and sends copies.
    Worker,
    /// It waits in the lobby, and takes copies.
    Holder,
}

impl CopyPair {
    /// Reads a document. Blank text, and text that is no document, means that the pod has no pair.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let pair: Self = serde_json::from_str(text).ok()?;
        (!pair.id.is_empty()).then_some(pair)
    }

    /// Writes the document as JSON.
    ///
    /// # Errors
    /// Fails only if memory is exhausted.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

/// What rank 0 knows about the copies that its worker's holder has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldCopy {
    /// Fingerprint of [`CopyPair::id`], which must stay unknown to others.
    pub pair: String,
    /// Name of the holder's pod.
    pub pod: String,
    /// Generation that committed the last step of the newest state of which the holder has all
    /// parts.
    #[serde(deserialize_with = "counter::read")]
    pub generation: u64,
    /// Committed steps of that state.
    #[serde(deserialize_with = "counter::read")]
    pub step: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pair_round_trips() {
        for (role, generation) in [(CopyRole::Worker, 0), (CopyRole::Holder, 3)] {
            let pair = CopyPair {
                id: "a1".to_owned(),
                role,
                peer: "job-1".to_owned(),
                address: "10.0.0.2".to_owned(),
                generation,
            };
            assert_eq!(CopyPair::parse(&pair.to_json().unwrap()), Some(pair));
        }
    }

    #[test]
    fn damaged_pairs_are_no_pairs() {
        let nameless = r#"{"id":"","role":"Holder","peer":"p","address":"10.0.0.2"}"#;
        for text in ["", "{", "{}", nameless] {
            assert_eq!(CopyPair::parse(text), None, "{text}");
        }
    }
}
