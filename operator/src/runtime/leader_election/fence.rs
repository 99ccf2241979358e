//! A client that writes only while its operator leads. It reads the clock at each call, because an
//! operator that was stopped for a minute continues in the middle of a reconcile.

use std::sync::Arc;

use axum::http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;

use super::Leadership;

type Problem = Box<dyn std::error::Error + Send + Sync>;

/// The write was not sent.
#[derive(Debug, thiserror::Error)]
#[error("this operator does not lead")]
struct DoesNotLead;

/// The same client, whose writes require the leadership.
#[must_use]
pub fn fenced(client: Client, leadership: Arc<Leadership>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let is_write = *request.method() != Method::GET;
        let may = !is_write || leadership.may_write();
        async move {
            if !may {
                return Err(Problem::from(DoesNotLead));
            }
            let answer: Response<Body> = client.send(request).await?;
            Ok(answer)
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn only_reads_pass_while_another_operator_leads() {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let server = tower::service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, Problem>(Response::new(Body::empty())) }
        });
        let server = Client::new(server, "default");
        let send = async |leadership: Leadership, method: Method| {
            let client = fenced(server.clone(), Arc::new(leadership));
            let request = Request::builder().method(method).uri("/api/v1/pods");
            client.send(request.body(Body::empty()).unwrap()).await
        };
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let refused = send(Leadership::among_others(), method.clone()).await;
            assert!(refused.unwrap_err().to_string().contains("does not lead"));
            send(Leadership::alone(), method).await.unwrap();
        }
        send(Leadership::among_others(), Method::GET).await.unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 5);
    }
}
