//! The membership document: one worker's place in one generation.
//!
//! The operator writes it as an annotation of the pod, and a downward-API volume shows it as a
//! file. A reader accepts only a generation greater than its current one and greater than the one
//! that it found at its start. So it ignores an old document in a restarted container, and a late
//! patch of a stale leader.

use std::error::Error;
use std::fmt::{self, Display, Formatter, Write};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::counter;

/// Version of the protocol between the processes of a generation, and between them and the
/// operator. It must be raised by a change that older versions do not understand: an agent accepts
/// no document of a higher protocol, and ranks of two protocols do not train together.
pub const PROTOCOL: u32 = 1;

/// The document as it is serialized.
#[derive(Serialize, Deserialize)]
struct Document<T> {
    /// Older versions leave it out.
    #[serde(default = "first_protocol")]
    protocol: u32,
    #[serde(flatten)]
    membership: T,
}

const fn first_protocol() -> u32 {
    1
}

/// Why a text is not a membership that this version can follow.
#[derive(Debug)]
pub enum MembershipError {
    /// It has this protocol, which is higher than [`PROTOCOL`].
    NewerProtocol(u32),
    /// It is not a membership document.
    Malformed(serde_json::Error),
}

impl Display for MembershipError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NewerProtocol(protocol) => write!(
                f,
                "it is of protocol {protocol}, and this version knows {PROTOCOL}: the operator is newer than this image; give \
                 the workers an image of its version"
            ),
            Self::Malformed(error) => error.fmt(f),
        }
    }
}

impl Error for MembershipError {}

impl From<serde_json::Error> for MembershipError {
    fn from(error: serde_json::Error) -> Self {
        Self::Malformed(error)
    }
}

/// What the worker must do with this generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Become a member of the generation.
    Join,
    /// Leave at the next step boundary.
    Leave,
}

/// Address of the generation's rendezvous store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Master {
    /// Pod IP of the worker with node rank 0.
    pub address: String,
    /// TCP port, [`crate::ports::RENDEZVOUS`] in pods.
    pub port: u16,
}

/// A start of a container, by pod UID and container restarts: a restarted container
/// is a new member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Incarnation {
    /// `metadata.uid` of the pod.
    pub pod_uid: String,
    /// `restartCount` of the trainer container.
    pub restarts: u32,
}

/// One worker's place in one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    /// Number of the generation, from 1; per job it only grows.
    pub generation: u64,
    /// Whether the worker joins or leaves.
    pub action: Action,
    /// Rank of this worker, 0 ≤ `node_rank` < `nodes`.
    pub node_rank: u32,
    /// Number of workers in the generation.
    pub nodes: u32,
    /// Number of processes of each worker, at least 1.
    pub procs_per_worker: u32,
    /// Address of the rendezvous store, on the worker with node rank 0.
    pub master: Master,
    /// Fingerprint of all members' incarnations, sorted by UID: equal for all members.
    pub members: String,
    /// 128 random bits in hexadecimal, drawn when the generation was raised: equal for all members,
    /// and unknown to clients that may not read the job or its pods. So the agent accepts it as
    /// proof that a client may read more than metrics ([`crate::ports::NONCE_HEADER`]). Empty if an
    /// older operator issued the generation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nonce: String,
    /// The life of the pod's replica for which this document was written, see
    /// [`crate::ReplicaPlace::life`]; empty if a replica is one pod.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub life: String,
    /// The incarnation for which this document was written.
    pub incarnation: Incarnation,
    /// Time of issue (RFC 3339). From it the operator knows whether an unready member has had time
    /// to receive its generation.
    pub issued_at: String,
    /// How often the operator has reissued it because it may not have arrived. The kubelet
    /// sometimes misses a change of an annotation and shows it only when it synchronizes the
    /// pod the next time, after 60 to 90 s (kubernetes/kubernetes#59813). Any change of the
    /// pod causes a synchronization.
    #[serde(default, skip_serializing_if = "counter::is_zero")]
    pub repeats: u32,
}

impl Membership {
    /// Number of ranks of the generation.
    #[must_use]
    pub const fn world_size(&self) -> u32 {
        self.nodes * self.procs_per_worker
    }

    /// Rank of one of this worker's processes.
    #[must_use]
    pub const fn rank(&self, local_rank: u32) -> u32 {
        self.node_rank * self.procs_per_worker + local_rank
    }

    /// Reads a document; blank text means that there is none yet. Unknown keys of a
    /// newer operator are ignored.
    ///
    /// # Errors
    /// Fails if the text is not a membership document, or has a higher [`PROTOCOL`].
    pub fn parse(text: &str) -> Result<Option<Self>, MembershipError> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        // The other fields of a document with a higher protocol are unknown.
        let Document { protocol, .. } = serde_json::from_str::<Document<IgnoredAny>>(text)?;
        if protocol > PROTOCOL {
            return Err(MembershipError::NewerProtocol(protocol));
        }
        Ok(serde_json::from_str(text).map(Some)?)
    }

    /// The document as compact JSON.
    ///
    /// # Errors
    /// The function never fails for values of this type; serde's signature requires a result.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&Document {
            protocol: PROTOCOL,
            membership: self,
        })
    }
}

/// Fingerprint of the members in the given order, which must be the same each time (the planner
/// sorts by UID): of each, the parts of its [`Incarnation`]. It is equal for the documents of one
/// generation.
#[must_use]
pub fn fingerprint<'a>(members: impl IntoIterator<Item = (&'a str, u32)>) -> String {
    let mut lines = String::new();
    for (uid, restarts) in members {
        // Writing to a string never fails.
        let _ = writeln!(lines, "{uid}/{restarts}");
    }
    fingerprint_of(lines.as_bytes())
}

/// Fingerprint (FNV-1a, 64 bits, hexadecimal): for equality checks, not for secrets.
#[must_use]
pub fn fingerprint_of(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incarnation(uid: &str, restarts: u32) -> Incarnation {
        Incarnation {
            pod_uid: uid.to_owned(),
            restarts,
        }
    }

    fn document() -> Membership {
        Membership {
            life: String::new(),
            generation: 7,
            action: Action::Join,
            node_rank: 1,
            nodes: 3,
            procs_per_worker: 4,
            master: Master {
                address: "10.0.0.7".to_owned(),
                port: 29_500,
            },
            members: "0011".to_owned(),
            nonce: "00112233445566778899aabbccddeeff".to_owned(),
            incarnation: incarnation("a", 0),
            issued_at: "2026-01-01T00:00:00Z".to_owned(),
            repeats: 0,
        }
    }

    #[test]
    fn document_without_nonce_round_trips() {
        let mut document = document();
        document.nonce.clear();
        let text = document.to_json().unwrap();
        assert!(!text.contains("nonce"), "{text}");
        assert_eq!(Membership::parse(&text).unwrap(), Some(document));
    }

    #[test]
    fn membership_round_trips() {
        let text = document().to_json().unwrap();
        assert_eq!(Membership::parse(&text).unwrap(), Some(document()));
        assert!(text.contains(r#""nodeRank":1"#), "{text}");
    }

    #[test]
    fn higher_protocol_is_refused_by_number() {
        let text = document().to_json().unwrap();
        assert!(text.contains(r#""protocol":1"#), "{text}");
        let newer = text.replace(r#""protocol":1"#, r#""protocol":2,"color":"green""#);
        let error = Membership::parse(&newer).unwrap_err().to_string();
        assert!(
            error.contains("protocol 2") && error.contains("image"),
            "{error}"
        );
        let unlike = Membership::parse(r#"{"protocol": 9}"#).unwrap_err();
        assert!(unlike.to_string().contains("protocol 9"), "{unlike}");
        // A document of an older version without a protocol, and with a key that this version does
        // not know.
        let older = text.replace(r#""protocol":1"#, r#""color":"green""#);
        assert_eq!(Membership::parse(&older).unwrap(), Some(document()));
    }

    #[test]
    fn empty_file_is_no_membership_and_garbage_is_an_error() {
        assert_eq!(Membership::parse(" \n").unwrap(), None);
        assert!(Membership::parse("{").is_err());
    }

    #[test]
    fn ranks_of_a_worker_are_consecutive() {
        assert_eq!(document().world_size(), 12);
        assert_eq!(
            (0..4)
                .map(|local| document().rank(local))
                .collect::<Vec<_>>(),
            [4, 5, 6, 7]
        );
    }

    #[test]
    fn fingerprint_depends_on_order_and_restarts() {
        let (a, b) = (("a", 0), ("b", 0));
        assert_ne!(fingerprint([a, b]), fingerprint([b, a]));
        assert_ne!(fingerprint([a, b]), fingerprint([a, ("b", 1)]));
        // Jobs that train have fingerprints in their status.
        assert_eq!(fingerprint([a, b]), fingerprint_of(b"a/0\nb/0\n"));
    }
}
