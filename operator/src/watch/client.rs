//! The client of the watches. It records when each watch last received something, and gives up a
//! list or a watch without an answer. A connection may be dead without an error: if neither side
//! closes it, the watch would wait indefinitely while the jobs stand still.
//!
//! Only watches use this client. Answers to other calls would say nothing about the age of the
//! caches.

use std::time::Duration;

use axum::http::Request;
use futures::stream::unfold;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body as HttpBody, Bytes};
use kube::Client;
use kube::client::Body;
use tokio::time::{Instant, timeout};

use crate::metrics::labels::Verb;
use crate::metrics::labels::Watched;
use crate::metrics::watch_ages::WatchAges;
use crate::runtime::api::metered::{describe, group};

/// Timeouts of lists and watches. The API server ends each watch after 60 s and the operator
/// restarts it, so a healthy watch receives something at least once a minute, even without changes
/// and bookmarks.
#[derive(Clone, Copy, Debug)]
pub struct WatchTimeouts {
    /// Time until the answer to a list or a watch begins.
    pub answer: Duration,
    /// Longest pause within an answer.
    pub pause: Duration,
    /// Length of a watch, in seconds.
    pub watch: u32,
    /// From this age on, and after a break, the operator asks the API server before it deletes a
    /// pod or counts an incident.
    pub stale: Duration,
}

impl Default for WatchTimeouts {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(30),
            pause: Duration::from_secs(70),
            watch: 60,
            stale: Duration::from_secs(90),
        }
    }
}

/// An answer does not come, or does not continue.
#[derive(Debug, thiserror::Error)]
#[error("the API server sent nothing for {} s", .0.as_secs())]
struct Silent(Duration);

type Problem = Box<dyn std::error::Error + Send + Sync>;

/// The same client, with the timeouts of watches.
#[must_use]
pub fn listening(client: Client, ages: WatchAges, timeouts: WatchTimeouts) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (verb, resource) = describe(request.method(), request.uri());
        let group = group(request.uri()).to_owned();
        let (client, ages) = (client.clone(), ages.clone());
        async move {
            let answer = timeout(timeouts.answer, client.send(request)).await;
            let answer = answer.map_err(|_| Silent(timeouts.answer))??;
            let kind = Watched::of(resource, &group).filter(|_| answer.status().is_success());
            if let Some(kind) = kind {
                ages.received(kind);
            }
            let ends = Instant::now() + Duration::from_secs(timeouts.watch.into());
            let state = WatchState {
                kind,
                ends: (verb == Verb::Watch).then_some(ends),
                has_failed: false,
                ages,
            };
            Ok::<_, Problem>(answer.map(|body| parts(body, timeouts.pause, state)))
        }
    });
    Client::new(service, namespace)
}

/// The beginning of the message with which the API server ends a watch that cannot continue.
const ERROR: &[u8] = br#"{"type":"ERROR""#;
/// Tolerance for the end of a watch: clocks differ, and the API server's began earlier.
const EARLY: Duration = Duration::from_secs(1);

/// The watch that an answer belongs to.
struct WatchState {
    kind: Option<Watched>,
    /// When the watch ends; `None` for a list.
    ends: Option<Instant>,
    /// Whether an error has begun. It ends the watch, and may come in several parts.
    has_failed: bool,
    ages: WatchAges,
}

impl WatchState {
    /// A part of a watch covers what happened since it broke off, at least by a bookmark. A list is
    /// not in the cache yet.
    fn received(&mut self, part: &[u8]) {
        let Some(kind) = self.kind else { return };
        self.ages.received(kind);
        self.has_failed |= part.starts_with(ERROR);
        if self.ends.is_some() && !self.has_failed && !part.is_empty() {
            self.ages.catch_up(kind);
        }
    }

    /// A watch that ends before its time broke off: the API server may have stopped.
    fn ended(&self) {
        if let (Some(kind), Some(ends)) = (self.kind, self.ends)
            && Instant::now() + EARLY < ends
        {
            self.ages.break_off(kind);
        }
    }
}

/// The same body. Each part is recorded in `state`, and a pause longer than `pause` ends it with an
/// error.
fn parts(
    body: Body,
    pause: Duration,
    state: WatchState,
) -> impl HttpBody<Data = Bytes, Error = Problem> + Send + 'static {
    StreamBody::new(unfold(Some((body, state)), move |watch| async move {
        let (mut body, mut state) = watch?;
        let Ok(part) = timeout(pause, body.frame()).await else {
            return Some((Err(Problem::from(Silent(pause))), None));
        };
        let Some(part) = part else {
            state.ended();
            return None;
        };
        if let Ok(part) = &part {
            state.received(part.data_ref().map_or(&[], |data| data));
        }
        let part = part.map_err(Problem::from);
        Some((part, Some((body, state))))
    }))
}

#[cfg(test)]
mod tests {
    use axum::http::Response;
    use futures::StreamExt;
    use hyper::body::Frame;
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use kube::api::{ListParams, WatchParams};
    use prometheus::Registry;

    use super::*;
    use crate::metrics::Metrics;
    use crate::metrics::testing::ManualClock;

    const EMPTY: &str =
        r#"{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"1"},"items":[]}"#;

    const BOOKMARK: &str = "{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\
        \"metadata\":{\"resourceVersion\":\"2\"}}}\n";
    const GONE: &str = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"apiVersion\":\"v1\",\
        \"status\":\"Failure\",\"message\":\"too old\",\"reason\":\"Expired\",\"code\":410}}\n";

    const GONE_IN_PARTS: &str = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",|\"apiVersion\":\"v1\",\
        \"status\":\"Failure\",\"message\":\"too old\",|\"reason\":\"Expired\",\"code\":410}}\n|";

    /// A body that begins with this text, in parts between `|`, and then ends or pauses.
    fn body(
        text: &'static str,
        ends: bool,
    ) -> impl HttpBody<Data = Bytes, Error = Problem> + Send + 'static {
        StreamBody::new(unfold(text.split('|'), move |mut parts| async move {
            match parts.next() {
                Some(part) => Some((Ok(Frame::data(Bytes::from(part))), parts)),
                None if ends => None,
                None => std::future::pending().await,
            }
        }))
    }

    /// A client of an API server that behaves differently in each namespace.
    fn client() -> (Client, WatchAges) {
        let server = tower::service_fn(|request: Request<Body>| async move {
            let path = request.uri().path().to_owned();
            let (status, body) = match path.split('/').nth(4).unwrap_or_default() {
                "silent" => std::future::pending().await,
                "half" => (200, body(r#"{"apiVersion":"#, false)),
                "refused" => (403, body("no", false)),
                "bookmark" => (200, body(BOOKMARK, false)),
                "gone" => (200, body(GONE, false)),
                "gone-in-parts" => (200, body(GONE_IN_PARTS, false)),
                "ends" => (200, body("", true)),
                _ => (200, body(EMPTY, false)),
            };
            let answer = Response::builder().status(status);
            Ok::<_, Problem>(answer.body(body).unwrap())
        });
        let metrics = Metrics::new(&Registry::new(), ManualClock::new().clock()).unwrap();
        let ages = metrics.watch_ages;
        let server = Client::new(server, "default");
        let client = listening(server, ages.clone(), WatchTimeouts::default());
        (client, ages)
    }

    fn pods(client: &Client, namespace: &str) -> Api<Pod> {
        Api::namespaced(client.clone(), namespace)
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_or_a_watch_without_an_answer_is_given_up() {
        let (client, _) = client();
        let (silent, half) = (pods(&client, "silent"), pods(&client, "half"));
        let begun = Instant::now();
        let error = silent.list(&ListParams::default()).await.unwrap_err();
        assert_eq!(begun.elapsed().as_secs(), 30, "{error}");
        let watch = silent.watch(&WatchParams::default(), "1").await;
        assert!(watch.is_err());
        assert_eq!(begun.elapsed().as_secs(), 60);
        assert!(half.list(&ListParams::default()).await.is_err());
        assert_eq!(begun.elapsed().as_secs(), 130, "the answer had begun");
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_answered_watch_counts_as_received() {
        let (client, ages) = client();
        let (silent, refused) = (pods(&client, "silent"), pods(&client, "refused"));
        let well = pods(&client, "well");
        assert!(silent.list(&ListParams::default()).await.is_err());
        assert!(refused.list(&ListParams::default()).await.is_err());
        assert_eq!(ages.oldest(), None);
        assert!(well.watch(&WatchParams::default(), "1").await.is_ok());
        assert_eq!(ages.oldest(), Some((Watched::Pods, Duration::ZERO)));
    }

    #[tokio::test(start_paused = true)]
    async fn watch_catches_up_with_any_event_but_an_error() {
        let (client, ages) = client();
        ages.received(Watched::Pods);
        for (namespace, expected) in [
            ("bookmark", true),
            ("gone", false),
            ("gone-in-parts", false),
            ("well", false),
        ] {
            ages.break_off(Watched::Pods);
            let pods = pods(&client, namespace);
            if namespace == "well" {
                let all = ListParams::default();
                let list = timeout(Duration::from_secs(1), pods.list(&all));
                assert!(list.await.is_err(), "the list continues");
            } else {
                let mut watch = Box::pin(pods.watch(&WatchParams::default(), "1").await.unwrap());
                watch.next().await.unwrap().unwrap();
                let next = timeout(Duration::from_secs(1), watch.next());
                assert!(next.await.is_err(), "the watch continues");
            }
            assert_eq!(ages.broken().is_none(), expected, "{namespace}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn watch_that_ends_early_is_broken() {
        let (client, ages) = client();
        let ends = pods(&client, "ends");
        let mut watch = Box::pin(ends.watch(&WatchParams::default(), "1").await.unwrap());
        assert!(watch.next().await.is_none());
        assert_eq!(ages.broken(), Some((Watched::Pods, Duration::ZERO)));
    }
}
