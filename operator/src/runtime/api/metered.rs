//! A client of the API server that counts its calls: reads, writes and watches, each try
//! separately. It also copies the Retry-After header of an answer into its body.

use std::time::Instant;

use axum::http::header::DATE;
use axum::http::{Method, Request, Response, Uri};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;

use crate::metrics::api::{Api, Outcome};
use crate::metrics::labels::{Resource, Verb};
use crate::runtime::api::retry_after::in_body;

/// The same client, with counted calls.
#[must_use]
pub fn metered(client: Client, metrics: Api) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let call = Call::begin(&metrics, request.method(), request.uri());
        async move {
            let answer = client.send(request).await;
            if let Ok(answer) = &answer
                && let Some(date) = answer.headers().get(DATE)
                && let Ok(date) = date.to_str()
            {
                call.metrics.dated(date, Timestamp::now());
            }
            call.end(&answer);
            match answer {
                Ok(answer) => Ok(in_body(answer).await),
                Err(error) => Err(error),
            }
        }
    });
    Client::new(service, namespace)
}

/// A call without an answer. If it is dropped, the caller gave it up: it took too long.
struct Call {
    metrics: Api,
    verb: Verb,
    resource: Resource,
    begun: Instant,
    outcome: Outcome,
}

impl Call {
    fn begin(metrics: &Api, method: &Method, uri: &Uri) -> Self {
        let (verb, resource) = describe(method, uri);
        Self {
            metrics: metrics.clone(),
            verb,
            resource,
            begun: Instant::now(),
            outcome: Outcome::Timeout,
        }
    }

    fn end(mut self, answer: &Result<Response<Body>, kube::Error>) {
        self.outcome = match answer {
            Ok(answer) => Outcome::Status(answer.status().as_u16()),
            Err(_) => Outcome::Connection,
        };
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        self.metrics
            .called(self.verb, self.resource, self.outcome, took);
    }
}

/// The API group of a request; empty for the core group.
pub(crate) fn group(uri: &Uri) -> &str {
    let mut path = uri.path().trim_matches('/').split('/');
    let group = path.nth(1).unwrap_or_default();
    if uri.path().starts_with("/apis/") {
        group
    } else {
        ""
    }
}

/// The verb and the resource of a request
/// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris>).
pub(crate) fn describe(method: &Method, uri: &Uri) -> (Verb, Resource) {
    let mut path = uri.path().trim_matches('/').split('/');
    // The group and version: api/v1 or apis/GROUP/VERSION.
    let to_skip = if path.next() == Some("apis") { 2 } else { 1 };
    let path: Vec<&str> = path.skip(to_skip).collect();
    let path = match path.as_slice() {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    let (resource, is_named) = match path {
        [kind, _, subresource, ..] => (format!("{kind}/{subresource}"), true),
        [kind, _] => ((*kind).to_owned(), true),
        [kind] => ((*kind).to_owned(), false),
        [] => (String::new(), false),
    };
    let watches = |part: &str| matches!(part, "watch=true" | "watch=1");
    let is_watch = uri
        .query()
        .is_some_and(|query| query.split('&').any(watches));
    let verb = match *method {
        Method::GET if is_watch => Verb::Watch,
        Method::GET if is_named => Verb::Get,
        Method::GET => Verb::List,
        Method::POST => Verb::Create,
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE => Verb::Delete,
        _ => Verb::Other,
    };
    (verb, Resource::of(&resource))
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::metrics::Metrics;
    use crate::metrics::labels::Watched;
    use crate::metrics::testing::{ManualClock, value};

    #[test]
    fn calls_have_the_verb_and_resource_of_kubernetes() {
        let cases = [
            (
                Method::GET,
                "/api/v1/pods?labelSelector=a%3Db&watch=true",
                "watch pods",
            ),
            (Method::GET, "/api/v1/namespaces/ml/pods", "list pods"),
            (
                Method::GET,
                "/api/v1/namespaces/ml/services/digits",
                "get services",
            ),
            (
                Method::POST,
                "/api/v1/namespaces/ml/pods?fieldManager=x",
                "create pods",
            ),
            (
                Method::DELETE,
                "/api/v1/namespaces/ml/pods/digits-0-0",
                "delete pods",
            ),
            (
                Method::PATCH,
                "/apis/roundhouse.dev/v1alpha1/namespaces/ml/trainingjobs/digits/status?",
                "patch trainingjobs/status",
            ),
            (
                Method::POST,
                "/apis/networking.k8s.io/v1/namespaces/ml/networkpolicies",
                "create networkpolicies",
            ),
            (Method::GET, "/api/v1/nodes?watch=1", "watch nodes"),
            (Method::GET, "/api/v1/namespaces/pods", "get namespaces"),
            (
                Method::GET,
                "/api/v1/namespaces?watch=1",
                "watch namespaces",
            ),
            (Method::GET, "/version", "list other"),
        ];
        for (method, path, expected) in cases {
            let (verb, resource) = describe(&method, &path.parse().unwrap());
            let found = format!("{} {}", verb.as_str(), resource.as_str());
            assert_eq!(found, expected, "{method} {path}");
        }
    }

    #[test]
    fn api_group_distinguishes_watches_of_kinds_of_one_name() {
        let cases = [
            ("/api/v1/pods?watch=1", Some(Watched::Pods)),
            (
                "/apis/roundhouse.dev/v1alpha1/trainingjobs?watch=1",
                Some(Watched::TrainingJobs),
            ),
            (
                "/apis/scheduling.x-k8s.io/v1alpha1/podgroups?watch=1",
                Some(Watched::CoschedulingGroups),
            ),
            (
                "/apis/scheduling.volcano.sh/v1beta1/namespaces/ml/podgroups?watch=1",
                Some(Watched::VolcanoGroups),
            ),
            (
                "/apis/scheduling.k8s.io/v1beta1/podgroups?watch=1",
                Some(Watched::KubernetesGroups),
            ),
            ("/apis/example.com/v1/podgroups?watch=1", None),
        ];
        for (path, expected) in cases {
            let uri: Uri = path.parse().unwrap();
            let (_, resource) = describe(&Method::GET, &uri);
            assert_eq!(Watched::of(resource, group(&uri)), expected, "{path}");
        }
    }

    #[tokio::test]
    async fn clock_offset_to_the_api_server_is_measured() {
        let metrics = Metrics::new(&Registry::new(), ManualClock::new().clock()).unwrap();
        let server = tower::service_fn(|_: Request<Body>| async move {
            let date = "Thu, 01 Jan 1970 00:16:40 GMT";
            let answer = Response::builder().header(DATE, date).body(Body::empty());
            Ok::<_, String>(answer.unwrap())
        });
        let client = metered(Client::new(server, "default"), metrics.api.clone());
        assert_eq!(metrics.api.clock_ahead(), 0, "no answer yet");
        let request = Request::get("/version").body(Body::empty()).unwrap();
        client.send(request).await.unwrap();
        let ahead = Timestamp::now().as_second() - 1_000;
        assert!((metrics.api.clock_ahead() - ahead).abs() < 60);
    }

    #[tokio::test]
    async fn calls_count_by_code_and_dropped_calls_as_timeouts() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry, ManualClock::new().clock()).unwrap();
        let server = tower::service_fn(|request: Request<Body>| async move {
            match request.uri().path() {
                "/api/v1/nodes/silent" => std::future::pending().await,
                "/api/v1/nodes/gone" => Err("reset by peer"),
                _ => Ok(Response::builder().status(409).body(Body::empty()).unwrap()),
            }
        });
        let client = metered(Client::new(server, "default"), metrics.api);
        let ask = |name: &str| {
            let uri = format!("/api/v1/nodes/{name}");
            client.send(Request::get(uri).body(Body::empty()).unwrap())
        };
        assert_eq!(ask("there").await.unwrap().status(), 409);
        assert!(ask("gone").await.is_err());
        let silent = ask("silent");
        // The call begins, and is dropped.
        assert!(futures::poll!(Box::pin(silent)).is_pending());
        let calls = |code: &str| {
            let series = format!(
                "roundhouse_operator_api_calls_total{{code=\"{code}\",resource=\"nodes\",verb=\"get\"}}"
            );
            value(&registry, &series)
        };
        assert_eq!((calls("409"), calls("connection")), (Some(1.0), Some(1.0)));
        let seconds = "roundhouse_operator_api_call_seconds_count{verb=\"get\"}";
        assert!(value(&registry, seconds) >= Some(2.0));
    }
}
