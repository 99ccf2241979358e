//! The pause that the API server, or a proxy before it, asks for in the header Retry-After of 429
//! and 503. kube reads only the body of an answer, so the seconds are copied into the field that
//! Kubernetes has for them there.

use axum::http::header::{CONTENT_LENGTH, RETRY_AFTER};
use axum::http::{Response, StatusCode};
use http_body_util::{BodyExt, Collected, Limited};
use kube::client::Body;
use kube::core::Status;
use kube::core::response::StatusDetails;

/// A longer body is no Status.
const MAX_BYTES: usize = 64 << 10;

/// The same answer, with the seconds of the header in the Status of its body.
pub async fn in_body(answer: Response<Body>) -> Response<Body> {
    let Some(seconds) = seconds(&answer) else {
        return answer;
    };
    let (mut parts, body) = answer.into_parts();
    let body = Limited::new(body, MAX_BYTES).collect().await;
    let body = body.map(Collected::to_bytes).unwrap_or_default();
    let status = serde_json::from_slice::<Status>(&body);
    let mut status = status.unwrap_or_else(|_| {
        let words = String::from_utf8_lossy(&body);
        let reason = parts.status.canonical_reason().unwrap_or_default();
        Status::failure(words.trim(), reason).with_code(parts.status.as_u16())
    });
    let details = status.details.get_or_insert_with(no_details);
    details.retry_after_seconds = details.retry_after_seconds.max(seconds);
    let body = serde_json::to_vec(&status).unwrap_or_else(|_| body.to_vec());
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(body))
}

const fn no_details() -> StatusDetails {
    StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: Vec::new(),
        retry_after_seconds: 0,
    }
}

fn seconds(answer: &Response<Body>) -> Option<u32> {
    let says = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    if !says.contains(&answer.status()) {
        return None;
    }
    answer
        .headers()
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::runtime::api::error::CallError;

    /// The result that kube returns for such an answer.
    async fn read(code: u16, header: &str, body: &'static str) -> CallError {
        let answer = Response::builder().status(code).header(RETRY_AFTER, header);
        let answer = answer.body(Body::from(body.as_bytes().to_vec())).unwrap();
        let answer = in_body(answer).await;
        let server = tower::service_fn(move |_: axum::http::Request<Body>| {
            let (status, body) = (answer.status(), answer.body().try_clone().unwrap());
            async move {
                let answer = Response::builder().status(status).body(body);
                Ok::<_, std::io::Error>(answer.unwrap())
            }
        });
        let client = kube::Client::new(server, "default");
        let pods: kube::Api<k8s_openapi::api::core::v1::Pod> =
            kube::Api::default_namespaced(client);
        CallError::Kube(pods.get("digits").await.unwrap_err())
    }

    #[tokio::test]
    async fn retry_after_header_is_copied_into_the_status() {
        let status = r#"{"kind":"Status","status":"Failure","message":"later","code":429,"details":{"retryAfterSeconds":9}}"#;
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let cases = [
            ("words alone", 429, "7", "Too many requests", seconds(7)),
            ("a proxy", 503, "30", "<html>", seconds(30)),
            ("a Status that says more", 429, "1", status, seconds(9)),
            ("a date", 503, "Wed, 21 Oct 2026 07:28:00 GMT", "", None),
            ("another code", 500, "7", "no", None),
        ];
        for (name, code, header, body, expected) in cases {
            let error = read(code, header, body).await;
            assert_eq!(error.retry_after(), expected, "{name}: {error}");
            assert_eq!(error.code(), Some(code), "{name}");
        }
    }
}
