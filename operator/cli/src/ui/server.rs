//! Serves the page over HTTP: the guard admits or refuses a request, and the server routes it.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use roundhouse_bounded_http::{self as bounded_http, Limits};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::assets;
use super::guard::Guard;
use super::model::{JobName, LogRequest, QueryError};
use super::query_cache::QueryCache;

/// A client without the token holds a connection for a few seconds at most. An answer may wait for
/// the API server.
const LIMITS: Limits = Limits {
    max_connections: 64,
    header_timeout: Duration::from_secs(10),
    idle_timeout: Duration::from_secs(60),
};

/// The browser loads nothing from other hosts, runs only the page's own scripts, and refuses to
/// show the page in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every answer. The address contains the token, so no cache may store it and no request
/// may carry it as a referrer.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

type Answer = Response<Full<Bytes>>;

/// Serves until the future is dropped. It must run in a [`tokio::task::LocalSet`].
pub(crate) async fn serve(listener: TcpListener, guard: Guard, queries: QueryCache) -> Infallible {
    let (guard, queries) = (Rc::new(guard), Rc::new(queries));
    let start = |stream| {
        let (guard, queries) = (Rc::clone(&guard), Rc::clone(&queries));
        let service = service_fn(move |request: Request<Incoming>| {
            let (guard, queries) = (Rc::clone(&guard), Rc::clone(&queries));
            async move { Ok::<_, Infallible>(answer(&guard, &queries, &request).await) }
        });
        tokio::task::spawn_local(bounded_http::answer(stream, service, LIMITS)).abort_handle()
    };
    bounded_http::accept(listener, LIMITS, start, |error| {
        crate::out::aside(&format!("the page accepts no connection: {error}"));
    })
    .await
}

pub(super) async fn answer<B>(guard: &Guard, queries: &QueryCache, request: &Request<B>) -> Answer {
    let hosts = request.headers().get_all(header::HOST).iter();
    let hosts: Vec<&[u8]> = hosts.map(HeaderValue::as_bytes).collect();
    let path = match guard.admit(&hosts, request.uri().path()) {
        Ok(path) => path,
        Err(refusal) => return text(refusal.status(), refusal.words()),
    };
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "The page is read-only.");
    }
    if path.is_empty() {
        // Without the last slash, relative addresses in the page would resolve to the wrong path.
        let place = HeaderValue::from_str(&format!("{}/", request.uri().path()));
        let mut answer = text(StatusCode::PERMANENT_REDIRECT, "");
        answer
            .headers_mut()
            .extend(place.ok().map(|place| (header::LOCATION, place)));
        return answer;
    }
    if let Some(asset) = assets::find(path) {
        return reply(StatusCode::OK, asset.kind, asset.text.into());
    }
    let Some(question) = path.strip_prefix("/api/") else {
        return text(StatusCode::NOT_FOUND, "There is no such page.");
    };
    let query = request.uri().query().unwrap_or_default();
    match ask(queries, question, query).await {
        Ok(document) => json(StatusCode::OK, &document),
        Err(trouble) => {
            let words = trouble.to_string();
            json(trouble.status(), &json!({"error": words}))
        }
    }
}

async fn ask(queries: &QueryCache, question: &str, query: &str) -> Result<Value, QueryError> {
    if question == "jobs" {
        return queries.jobs().await;
    }
    let (namespace, name) = (name(query, "namespace")?, name(query, "name")?);
    let job = JobName { namespace, name };
    match question {
        "job" => queries.job(&job).await,
        "history" => queries.history(&job).await,
        "log" => {
            let number = parameter(query, "process").and_then(|text| text.parse().ok());
            let log = LogRequest {
                pod: self::name(query, "pod")?,
                process: number.unwrap_or(0),
                previous: parameter(query, "previous") == Some("true"),
            };
            queries.log(&job, &log).await
        }
        _ => Err(QueryError::NotFound(format!("There is no {question}."))),
    }
}

/// A parameter with the name of a Kubernetes object. Such names need no decoding: they have no
/// characters that an address escapes.
fn name(query: &str, key: &str) -> Result<String, QueryError> {
    let is_of_names = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '.');
    let found = parameter(query, key).filter(|name| {
        name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.len() <= 253
            && name.chars().all(is_of_names)
    });
    let wrong = || QueryError::Invalid(format!("{key} is not the name of an object."));
    found.map(str::to_owned).ok_or_else(wrong)
}

fn parameter<'a>(query: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .find(|(found, _)| *found == key)
        .map(|(_, value)| value)
}

fn json(status: StatusCode, document: &Value) -> Answer {
    reply(status, "application/json", document.to_string())
}

fn text(status: StatusCode, words: &str) -> Answer {
    reply(status, "text/plain; charset=utf-8", format!("{words}\n"))
}

fn reply(status: StatusCode, kind: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_could_be_a_path_is_refused() {
        assert_eq!(name("a=1&name=digits-2.b", "name").unwrap(), "digits-2.b");
        for query in [
            "",
            "name=",
            "name=..",
            "name=a/b",
            "name=a%2fb",
            "name=A",
            "names=a",
            "name=-a",
            "name=a?b",
        ] {
            assert!(name(query, "name").is_err(), "{query}");
        }
    }
}
