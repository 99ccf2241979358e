//! A fake API server that serves a scenario and records the calls.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::scenario::Scenario;

/// The fake API server; it ends with the test's runtime.
pub(crate) struct Fake {
    pub(crate) port: u16,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    scenario: Scenario,
    answers: bool,
    calls: Vec<String>,
}

impl Fake {
    pub(crate) async fn start(scenario: Scenario) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Mutex::new(Shared {
            scenario,
            answers: true,
            calls: Vec::new(),
        }));
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, shared }
    }

    /// Method and path of each call so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.shared.lock().unwrap().calls.clone()
    }

    /// Fails every call from now on.
    pub(crate) fn stop_answering(&self) {
        self.shared.lock().unwrap().answers = false;
    }

    /// Lets calls succeed again.
    #[cfg(feature = "browser")]
    pub(crate) fn answer_again(&self) {
        self.shared.lock().unwrap().answers = true;
    }

    /// Changes the scenario from now on.
    #[cfg(feature = "browser")]
    pub(crate) fn change(&self, change: impl FnOnce(&mut Scenario)) {
        change(&mut self.shared.lock().unwrap().scenario);
    }
}

/// Answers requests under the path of Roundhouse's API group.
fn jobs(scenario: &Scenario, path: &[&str]) -> Response {
    match path {
        ["trainingjobs"] | ["namespaces", "ml", "trainingjobs"] => {
            list("TrainingJobList", &scenario.jobs)
        }
        ["namespaces", "ml", "trainingjobs", name] => {
            let mut jobs = scenario.jobs.iter();
            let job = jobs.find(|job| job["metadata"]["name"] == **name);
            job.map_or_else(
                || refused(404, "no such job"),
                |job| axum::Json(job).into_response(),
            )
        }
        _ => refused(404, "no such path"),
    }
}

async fn answer(State(shared): State<Arc<Mutex<Shared>>>, request: Request) -> Response {
    let (path, query) = (
        request.uri().path(),
        request.uri().query().unwrap_or_default(),
    );
    let mut shared = shared.lock().unwrap();
    shared.calls.push(format!("{} {path}", request.method()));
    if !shared.answers {
        return refused(500, "etcdserver: etcd leader changed");
    }
    let steps: Vec<&str> = path.trim_matches('/').split('/').collect();
    let scenario = &shared.scenario;
    match steps.as_slice() {
        ["apis", "roundhouse.dev", "v1alpha1", rest @ ..] => jobs(scenario, rest),
        ["api", "v1", "namespaces", "ml", "pods"] => {
            let pods = scenario.pods.iter().filter(|pod| {
                let uid = pod["metadata"]["labels"]["roundhouse.dev/job-uid"].as_str();
                uid.is_some_and(|uid| query.contains(uid))
            });
            list("PodList", &pods.cloned().collect::<Vec<_>>())
        }
        ["api", "v1", "namespaces", "ml", "events"] => {
            let events = scenario.events.iter().filter(|event| {
                let uid = event["involvedObject"]["uid"].as_str();
                uid.is_some_and(|uid| query.contains(uid))
            });
            list("EventList", &events.cloned().collect::<Vec<_>>())
        }
        ["api", "v1", "namespaces", "ml", "pods", pod, "log"] => scenario
            .log(pod, query)
            .map_or_else(|| refused(404, "no such log"), IntoResponse::into_response),
        [
            "api",
            "v1",
            "namespaces",
            "ml",
            "pods",
            agent,
            "proxy",
            what,
        ] => {
            let pod = agent.split(':').next().unwrap();
            scenario.agent(pod, what).map_or_else(
                || refused(503, "no such agent"),
                IntoResponse::into_response,
            )
        }
        _ => refused(404, "unknown path"),
    }
}

fn list(kind: &str, items: &[Value]) -> Response {
    let version = if kind == "TrainingJobList" {
        "roundhouse.dev/v1alpha1"
    } else {
        "v1"
    };
    axum::Json(json!({"apiVersion": version, "kind": kind, "metadata": {}, "items": items}))
        .into_response()
}

fn refused(code: u16, message: &str) -> Response {
    let reason = if code == 404 {
        "NotFound"
    } else {
        "InternalError"
    };
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code,
    });
    (StatusCode::from_u16(code).unwrap(), axum::Json(status)).into_response()
}
