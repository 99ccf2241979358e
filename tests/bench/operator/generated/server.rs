//! A simulated API server that has only copies of a template. It serves lists in pages, and
//! watches.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use futures::stream::{pending, unfold};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio::task::AbortHandle;

use super::template::{KINDS, Template};
use crate::run::Shape;

const PODS: usize = 1;
/// The resource version of all lists. Changes have higher versions.
const VERSION: u64 = 1_000_000_000;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The running server. It ends when the value is dropped.
pub(super) struct Server {
    state: Arc<State>,
    port: u16,
    task: AbortHandle,
}

struct State {
    template: Template,
    shape: Shape,
    /// The watch events of pods, as lines of JSON.
    changes: broadcast::Sender<Bytes>,
    num_changes: AtomicU64,
    num_writes: AtomicUsize,
    /// The number of started watches of pods.
    num_watches: watch::Sender<usize>,
}

impl Server {
    pub(super) async fn start(template: Template, shape: Shape) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State {
            template,
            shape,
            changes: broadcast::channel(4_096).0,
            num_changes: AtomicU64::new(0),
            num_writes: AtomicUsize::new(0),
            num_watches: watch::Sender::new(0),
        });
        let task = tokio::spawn(serve(listener, Arc::clone(&state)));
        Ok(Self {
            state,
            port,
            task: task.abort_handle(),
        })
    }

    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    /// The number of requests that tried to change objects.
    pub(super) fn writes(&self) -> usize {
        self.state.num_writes.load(Ordering::Relaxed)
    }

    /// Ends the watch of pods with "410 Expired", so that the operator lists them again. Returns
    /// when the next watch has started.
    pub(super) async fn expire_watch(&self) {
        let mut num_watches = self.state.num_watches.subscribe();
        let before = *num_watches.borrow_and_update();
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired",
            "message": "too old resource version", "code": 410,
        });
        let event = format!("{}\n", json!({"type": "ERROR", "object": status}));
        let _ = self.state.changes.send(event.into());
        let _ = num_watches.wait_for(|watches| *watches > before).await;
    }

    /// Sends a change of a random pod to the watch.
    pub(super) fn change_a_pod(&self) {
        let state = &self.state;
        let change = state.num_changes.fetch_add(1, Ordering::Relaxed) + 1;
        let job = fastrand::usize(..state.shape.jobs as usize);
        let index = fastrand::usize(..state.template.per_job(PODS));
        let object = state
            .template
            .copy(PODS, index, job, Some(VERSION + change));
        let event = format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n");
        // There is no receiver while the watch restarts.
        let _ = state.changes.send(event.into());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(converse(stream, Arc::clone(&state)));
    }
}

async fn converse(stream: TcpStream, state: Arc<State>) {
    let answer = service_fn(move |request| {
        let answer = state.answer(&request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
    // The result is an error when the operator has closed the connection.
    let _ = connection.await;
}

impl State {
    fn answer(self: &Arc<Self>, request: &Request<Incoming>) -> Response<Body> {
        if request.method() != Method::GET {
            self.num_writes.fetch_add(1, Ordering::Relaxed);
            return refused(
                StatusCode::INTERNAL_SERVER_ERROR,
                "this server is read-only",
            );
        }
        let (path, query) = (request.uri().path(), request.uri().query());
        let parameter = |name: &str| {
            let pairs = query.unwrap_or_default().split('&');
            let mut pairs = pairs.filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let kind = KINDS.iter().position(|(end, _, _)| path.ends_with(end));
        match (kind, parameter("watch")) {
            (Some(PODS), Some(_)) => self.watch(),
            (Some(_), Some(_)) => silent(),
            (Some(kind), None) => {
                let number = |name| parameter(name).and_then(|text| text.parse().ok());
                let first = number("continue").unwrap_or(0);
                text(self.page(kind, first, number("limit").unwrap_or(usize::MAX)))
            }
            (None, Some(_)) if path.ends_with("/nodes") => silent(),
            (None, None) if path.ends_with("/nodes") => text(
                json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": VERSION.to_string()}, "items": [],
                })
                .to_string(),
            ),
            (None, _) => refused(StatusCode::NOT_FOUND, "no such kind"),
        }
    }

    /// A page of a list as JSON. It joins the texts of the items, because a page of pods has
    /// megabytes.
    fn page(&self, kind: usize, first: usize, limit: usize) -> String {
        let (_, version, list) = KINDS[kind];
        let per_job = self.template.per_job(kind);
        let end = first
            .saturating_add(limit)
            .min(per_job * self.shape.jobs as usize);
        let items = (first..end).map(|number| {
            self.template
                .copy(kind, number % per_job, number / per_job, None)
        });
        let items = items.collect::<Vec<_>>().join(",");
        let next = if end < per_job * self.shape.jobs as usize {
            Value::from(end.to_string())
        } else {
            Value::from("")
        };
        let metadata = json!({"resourceVersion": VERSION.to_string(), "continue": next});
        format!(
            "{{\"kind\":\"{list}\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},\"items\":[{items}]}}"
        )
    }

    fn watch(&self) -> Response<Body> {
        let changes = unfold(self.changes.subscribe(), |mut changes| async {
            let change = changes.recv().await.ok()?;
            Some((Ok(Frame::data(change)), changes))
        });
        self.num_watches.send_modify(|watches| *watches += 1);
        Response::new(StreamBody::new(changes).boxed_unsync())
    }
}

/// A watch that sends no events.
fn silent() -> Response<Body> {
    Response::new(StreamBody::new(pending()).boxed_unsync())
}

fn text(text: String) -> Response<Body> {
    Response::new(Full::new(Bytes::from(text)).boxed_unsync())
}

fn refused(code: StatusCode, message: &str) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
        "reason": if code == StatusCode::NOT_FOUND { "NotFound" } else { "InternalError" },
        "code": code.as_u16(),
    });
    let mut answer = text(status.to_string());
    *answer.status_mut() = code;
    answer
}
