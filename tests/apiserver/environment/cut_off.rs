//! A client that drops all writes after the n-th, as if the operator had crashed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::{Method, Request};
use kube::Client;
use kube::client::Body;

use super::lease_check::is_lease;

/// Wraps a client: the API server receives `left` more writes and then none, as if the operator
/// had crashed. A dropped write never gets a response.
pub(super) fn cut_off_after(client: Client, left: Arc<AtomicU32>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let passes = passes(&request, &left);
        async move {
            if !passes {
                return std::future::pending().await;
            }
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}

fn passes(request: &Request<Body>, left: &AtomicU32) -> bool {
    let path = request.uri().path();
    if is_lease(path) {
        return left.load(Ordering::SeqCst) > 0;
    }
    if *request.method() == Method::GET || path.ends_with("/events") {
        return true;
    }
    let take = |left: u32| left.checked_sub(1);
    let taken = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
    taken.is_ok()
}
