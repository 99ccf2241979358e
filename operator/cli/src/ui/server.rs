//! Requests to the page: each is let in by the guard, or refused; then it is routed.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::assets;
use super::desk::{Desk, Job, LogOf, Trouble};
use super::guard::Guard;

/// Most connections at a time. Whoever connects without the token holds one for a few seconds at most.
const MAX_CONNECTIONS: usize = 64;
/// Time for the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a request's headers.
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Pause after an accept that failed, as for want of descriptors.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// Nothing is loaded from elsewhere, no script but the page's own runs, and no other page may hold this one in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What every answer says. The address holds the token, so nothing may keep it or pass it on.
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
pub(crate) async fn serve(listener: TcpListener, guard: Guard, desk: Desk) -> Infallible {
    let (guard, desk) = (Rc::new(guard), Rc::new(desk));
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(AFTER_ERROR).await;
            continue;
        };
        let (guard, desk) = (Rc::clone(&guard), Rc::clone(&desk));
        tokio::task::spawn_local(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let (guard, desk) = (Rc::clone(&guard), Rc::clone(&desk));
                async move { Ok::<_, Infallible>(answer(&guard, &desk, &request).await) }
            });
            let mut connection = http1::Builder::new();
            connection
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(MAX_HEADER_BYTES);
            // An error is the browser's: it has gone away.
            let _ = connection
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(place);
        });
    }
}

pub(super) async fn answer<B>(guard: &Guard, desk: &Desk, request: &Request<B>) -> Answer {
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
        // Without the slash, names in the page would lead to nowhere.
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
    match ask(desk, question, query).await {
        Ok(document) => json(StatusCode::OK, &document),
        Err(trouble) => {
            let words = trouble.to_string();
            json(trouble.status(), &json!({"error": words}))
        }
    }
}

async fn ask(desk: &Desk, question: &str, query: &str) -> Result<Value, Trouble> {
    if question == "jobs" {
        return desk.jobs().await;
    }
    let (namespace, name) = (name(query, "namespace")?, name(query, "name")?);
    let job = Job { namespace, name };
    match question {
        "job" => desk.job(&job).await,
        "story" => desk.story(&job).await,
        "log" => {
            let number = parameter(query, "process").and_then(|text| text.parse().ok());
            let log = LogOf {
                pod: self::name(query, "pod")?,
                process: number.unwrap_or(0),
                previous: parameter(query, "previous") == Some("true"),
            };
            desk.log(&job, &log).await
        }
        _ => Err(Trouble::Missing(format!("There is no {question}."))),
    }
}

/// A parameter that is the name of an object. Names have no characters that an address would write in another way.
fn name(query: &str, key: &str) -> Result<String, Trouble> {
    let is_of_names = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '.');
    let found = parameter(query, key).filter(|name| {
        name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.len() <= 253
            && name.chars().all(is_of_names)
    });
    let wrong = || Trouble::Wrong(format!("{key} is not the name of an object."));
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
    fn a_name_that_could_be_a_path_is_refused() {
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
