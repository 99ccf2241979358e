//! Accepts only requests with the nonce of this worker's generation. The operator writes the nonce
//! into the job's status and into the membership document, so only clients that may read the job or
//! its pods know it.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use roundhouse_contract::{Membership, ReplicaPlace, ports};

use super::Shared;

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// This worker has no generation yet, or its operator creates no nonce.
    NoNonce,
    /// The request has no nonce, or another one.
    OtherNonce,
}

/// Answers 403 to a client that does not know the nonce.
pub(super) async fn is_known(
    State(shared): State<Shared>,
    request: Request,
    next: Next,
) -> Response {
    // The kubelet replaces the file with each generation. It is in memory, so reading it is cheap.
    let document = std::fs::read_to_string(&shared.options.membership_file).unwrap_or_default();
    let given = request.headers().get(ports::NONCE_HEADER);
    let given = given.map(axum::http::HeaderValue::as_bytes);
    let knows_life = || {
        let file = &shared.options.replica_place_file;
        is_life(&std::fs::read_to_string(file).unwrap_or_default(), given)
    };
    match refusal(&document, given).filter(|_| !knows_life()) {
        None => next.run(request).await,
        Some(refusal) => {
            let words = refusal.words(&shared.options.job);
            (StatusCode::FORBIDDEN, words).into_response()
        }
    }
}

/// Whether a client knows the life of a replica of several pods. Before its first generation a pod
/// has no other nonce.
fn is_life(place: &str, given: Option<&[u8]>) -> bool {
    let place = ReplicaPlace::parse(place);
    place.is_some_and(|place| given == Some(place.life.as_bytes()))
}

fn refusal(document: &str, given: Option<&[u8]>) -> Option<Refusal> {
    let document = Membership::parse(document).ok().flatten();
    match document.map(|document| document.nonce) {
        Some(nonce) if !nonce.is_empty() => {
            (given != Some(nonce.as_bytes())).then_some(Refusal::OtherNonce)
        }
        Some(_) | None => Some(Refusal::NoNonce),
    }
}

impl Refusal {
    fn words(self, job: &str) -> String {
        let header = ports::NONCE_HEADER;
        match self {
            Self::NoNonce => "this worker has no generation with a nonce yet\n".to_owned(),
            Self::OtherNonce => format!(
                "send the nonce of the job's generation in the header {header}: kubectl get trainingjob {job} \
                 -o jsonpath='{{.status.membership.nonce}}'. A worker learns a new one after a minute or two\n"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(nonce: &str) -> String {
        format!(
            r#"{{"generation":1,"action":"Join","nodeRank":0,"nodes":1,"procsPerWorker":1,
            "master":{{"address":"a","port":1}},"members":"","nonce":"{nonce}",
            "incarnation":{{"podUid":"","restarts":0}},"issuedAt":""}}"#
        )
    }

    #[test]
    fn life_of_a_replica_is_a_nonce() {
        let place = r#"{"replica":0,"pod":0,"addresses":["a"],"number":1,"life":"a1",
            "incarnation":{"podUid":"","restarts":0}}"#;
        assert!(is_life(place, Some(b"a1")));
        assert!(!is_life(place, Some(b"a2")) && !is_life(place, None));
        assert!(!is_life("", Some(b"")) && !is_life("", None));
    }

    #[test]
    fn request_needs_the_nonce_of_the_document() {
        let (document, old) = (document("a1"), document(""));
        for (document, given, expected) in [
            (&*document, Some("a1"), None),
            (&document, Some("a2"), Some(Refusal::OtherNonce)),
            (&document, Some("a"), Some(Refusal::OtherNonce)),
            (&document, Some(""), Some(Refusal::OtherNonce)),
            (&document, None, Some(Refusal::OtherNonce)),
            (&old, Some(""), Some(Refusal::NoNonce)),
            (&old, None, Some(Refusal::NoNonce)),
            ("", Some(""), Some(Refusal::NoNonce)),
            ("{", None, Some(Refusal::NoNonce)),
        ] {
            let found = refusal(document, given.map(str::as_bytes));
            assert_eq!(found, expected, "{document} {given:?}");
        }
    }
}
