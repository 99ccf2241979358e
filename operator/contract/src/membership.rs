//! The membership document: one worker's place in one generation.
//!
//! The operator writes it as an annotation on the pod; a downward-API volume shows it as a file.
//! A reader accepts only a generation greater than its current one and greater than the one it
//! found at its start, so an old document in a restarted container and a stale leader's late
//! patch are both ignored.

use std::error::Error;
use std::fmt::{self, Display, Formatter};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::counter;

/// What processes of one generation tell each other, and what the operator tells them. It is raised by a change that versions
/// before do not understand: an agent takes no document of a higher protocol, and ranks of two protocols do not train
/// together.
pub const PROTOCOL: u32 = 1;

/// The document as it is written.
#[derive(Serialize, Deserialize)]
struct Document<T> {
    /// Left out by versions before it.
    #[serde(default = "first_protocol")]
    protocol: u32,
    #[serde(flatten)]
    membership: T,
}

const fn first_protocol() -> u32 {
    1
}

/// Why a text is no membership document that this version can follow.
#[derive(Debug)]
pub enum Unread {
    /// It is of this protocol, which is higher than [`PROTOCOL`].
    NewerProtocol(u32),
    /// It is not a membership document.
    Malformed(serde_json::Error),
}

impl Display for Unread {
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

impl Error for Unread {}

impl From<serde_json::Error> for Unread {
    fn from(error: serde_json::Error) -> Self {
        Self::Malformed(error)
    }
}

/// What the worker is to do with this generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Be a member.
    Join,
    /// Leave at the next step boundary.
    Leave,
}

/// Where the generation's rendezvous store listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Master {
    /// Pod IP of the worker with node rank 0.
    pub address: String,
    /// TCP port, [`crate::ports::RENDEZVOUS`] in pods.
    pub port: u16,
}

/// (pod UID, container restarts): a restarted container is a new member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Incarnation {
    /// UID of the pod.
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
    /// Join or leave.
    pub action: Action,
    /// This worker's place, 0 ≤ `node_rank` < `nodes`.
    pub node_rank: u32,
    /// Number of workers in the generation.
    pub nodes: u32,
    /// Processes of each worker.
    pub procs_per_worker: u32,
    /// The rendezvous store.
    pub master: Master,
    /// Fingerprint of all members' incarnations, by UID: equal for all members.
    pub members: String,
    /// 128 random bits in hexadecimal, drawn when the generation was issued: equal for all members, and unknown to clients that
    /// may not read the job or its pods. So the agent accepts it as proof that a client may read more than metrics
    /// ([`crate::ports::NONCE_HEADER`]). Empty: the operator that issued the generation draws none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nonce: String,
    /// The incarnation this document was written for.
    pub incarnation: Incarnation,
    /// RFC 3339 time of issue. The operator tells by it whether a member that is not ready has had time to hear of
    /// its generation.
    pub issued_at: String,
    /// How often the operator has written it again because it may not have arrived: the kubelet misses a change of an
    /// annotation now and then, and shows it only when it looks at the pod the next time, after 60 to 90 s
    /// (kubernetes/kubernetes#59813). Any change of the pod makes it look.
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

    /// Reads a document; blank text is "none yet". Keys that a newer operator has added are ignored.
    ///
    /// # Errors
    /// The text is not a membership document, or one of a higher [`PROTOCOL`].
    pub fn parse(text: &str) -> Result<Option<Self>, Unread> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        // What else a document of a higher protocol holds is not known.
        let Document { protocol, .. } = serde_json::from_str::<Document<IgnoredAny>>(text)?;
        if protocol > PROTOCOL {
            return Err(Unread::NewerProtocol(protocol));
        }
        Ok(serde_json::from_str(text).map(Some)?)
    }

    /// The document as compact JSON.
    ///
    /// # Errors
    /// Never for values of this type; serde's signature asks for it.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&Document {
            protocol: PROTOCOL,
            membership: self,
        })
    }
}

/// Fingerprint of the members in the order given, which has to be the same each time (the planner's is by UID): equal for
/// documents of one generation.
#[must_use]
pub fn fingerprint(members: &[Incarnation]) -> String {
    let line = |member: &Incarnation| format!("{}/{}\n", member.pod_uid, member.restarts);
    let lines: String = members.iter().map(line).collect();
    fingerprint_of(lines.as_bytes())
}

/// Fingerprint (FNV-1a, 64 bit, hexadecimal): an equality check, not a secret.
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
    fn a_document_of_an_operator_that_drew_no_nonce_is_read_and_written_as_it_was() {
        let mut document = document();
        document.nonce.clear();
        let text = document.to_json().unwrap();
        assert!(!text.contains("nonce"), "{text}");
        assert_eq!(Membership::parse(&text).unwrap(), Some(document));
    }

    #[test]
    fn a_document_reads_back_as_itself() {
        let text = document().to_json().unwrap();
        assert_eq!(Membership::parse(&text).unwrap(), Some(document()));
        assert!(text.contains(r#""nodeRank":1"#), "{text}");
    }

    #[test]
    fn a_document_of_a_higher_protocol_is_refused_by_its_number() {
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
        // Of a version that did not write it, and with a key that this one does not know.
        let older = text.replace(r#""protocol":1"#, r#""color":"green""#);
        assert_eq!(Membership::parse(&older).unwrap(), Some(document()));
    }

    #[test]
    fn an_empty_file_is_no_document_and_garbage_is_an_error() {
        assert_eq!(Membership::parse(" \n").unwrap(), None);
        assert!(Membership::parse("{").is_err());
    }

    #[test]
    fn ranks_of_one_worker_follow_each_other() {
        assert_eq!(document().world_size(), 12);
        assert_eq!(
            (0..4)
                .map(|local| document().rank(local))
                .collect::<Vec<_>>(),
            [4, 5, 6, 7]
        );
    }

    #[test]
    fn the_fingerprint_notices_order_and_restarts() {
        let (a, b) = (incarnation("a", 0), incarnation("b", 0));
        assert_ne!(
            fingerprint(&[a.clone(), b.clone()]),
            fingerprint(&[b.clone(), a.clone()])
        );
        assert_ne!(
            fingerprint(&[a.clone(), b]),
            fingerprint(&[a, incarnation("b", 1)])
        );
    }
}
