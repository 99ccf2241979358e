//! A proxy on loopback between an operator and the API server. It applies the outcomes that
//! `injection` chooses.

use std::sync::Arc;

use http::header::{CONNECTION, CONTENT_TYPE, HOST, RETRY_AFTER, TRANSFER_ENCODING};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use kube::{Client, Config};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::api_call::{ApiCall, Verb};
use super::injection::Outcome;
use super::traffic::Traffic;
use super::watch_stream::relay_events;

/// The error that breaks a connection.
pub(crate) type Problem = Box<dyn std::error::Error + Send + Sync>;
type Answer = UnsyncBoxBody<Bytes, Problem>;

pub(crate) struct Proxy {
    port: u16,
    pub(crate) traffic: Arc<Traffic>,
    task: JoinHandle<()>,
}

struct State {
    api_server: Client,
    traffic: Arc<Traffic>,
}

impl Proxy {
    pub(crate) async fn start(api_server: Client) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let traffic = Traffic::new();
        let state = Arc::new(State {
            api_server,
            traffic: Arc::clone(&traffic),
        });
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&state);
                let service = service_fn(move |request| answer(Arc::clone(&state), request));
                let connection =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                // Ignored: either a fault has broken the connection or the operator has closed it.
                tokio::spawn(async move { drop(connection.await) });
            }
        });
        Self {
            port,
            traffic,
            task,
        }
    }

    /// The client configuration of an operator behind this proxy.
    pub(crate) fn config(&self) -> Config {
        let uri = format!("http://127.0.0.1:{}", self.port);
        let mut config = Config::new(uri.parse().unwrap());
        config.default_retry = false;
        config
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Problem> {
    let call = ApiCall::of(request.method(), request.uri());
    let mut version = None;
    match state.traffic.request(&call) {
        Outcome::Passes => {}
        Outcome::Refused(code, reason, seconds) => return Ok(refused(code, reason, seconds)),
        Outcome::Lost { hangs } => {
            let answer = forward(&state, request, None).await?;
            answer.into_body().collect().await?;
            if hangs {
                std::future::pending::<()>().await;
            }
            return Err("the response is lost".into());
        }
        Outcome::Older(older) => version = Some(older),
        Outcome::Held(pause) => sleep(pause).await,
        Outcome::Gone(pause) => {
            sleep(pause).await;
            return Ok(gone());
        }
    }
    let answer = forward(&state, request, version).await?;
    Ok(relay(&state, call, answer))
}

/// Sends the request to the API server. With `version` it reads the state at this resource
/// version.
async fn forward(
    state: &State,
    request: Request<Incoming>,
    version: Option<u64>,
) -> Result<Response<Body>, Problem> {
    let (mut parts, body) = request.into_parts();
    if let Some(version) = version {
        parts.uri = as_of(&parts.uri, version)?;
    }
    for name in [HOST, CONNECTION, TRANSFER_ENCODING] {
        parts.headers.remove(name);
    }
    let body = body.collect().await?.to_bytes();
    let request = Request::from_parts(parts, Body::from(body));
    let mut answer = state.api_server.send(request).await?;
    for name in [CONNECTION, TRANSFER_ENCODING] {
        answer.headers_mut().remove(name);
    }
    Ok(answer)
}

fn as_of(uri: &Uri, version: u64) -> Result<Uri, Problem> {
    let query = uri.query().unwrap_or_default().split('&');
    let kept = query.filter(|pair| !pair.starts_with("resourceVersion"));
    let kept: Vec<_> = kept.collect();
    let (path, kept) = (uri.path(), kept.join("&"));
    Ok(format!("{path}?{kept}&resourceVersion={version}&resourceVersionMatch=Exact").parse()?)
}

fn relay(state: &State, call: ApiCall, answer: Response<Body>) -> Response<Answer> {
    let is_watch = call.verb == Verb::Watch && answer.status().is_success();
    answer.map(|body| {
        if is_watch {
            let traffic = Arc::clone(&state.traffic);
            StreamBody::new(relay_events(traffic, call.resource, body)).boxed_unsync()
        } else {
            body.map_err(Problem::from).boxed_unsync()
        }
    })
}

fn refused(code: u16, reason: &str, seconds: Option<u32>) -> Response<Answer> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "a fault of the test", "reason": reason, "code": code});
    let mut answer = Response::builder()
        .status(code)
        .header(CONTENT_TYPE, "application/json");
    if let Some(seconds) = seconds {
        answer = answer.header(RETRY_AFTER, seconds);
    }
    answer.body(whole(status.to_string())).unwrap()
}

/// The response of the API server to a watch whose resource version is too old.
fn gone() -> Response<Answer> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version", "reason": "Expired", "code": 410});
    let event = json!({"type": "ERROR", "object": status});
    let answer = Response::builder().header(CONTENT_TYPE, "application/json");
    answer.body(whole(format!("{event}\n"))).unwrap()
}

fn whole(text: String) -> Answer {
    Full::from(text)
        .map_err(|never| match never {})
        .boxed_unsync()
}
