//! The HTTP client of the agents. A request whose answer does not arrive in time has no answer.

use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use roundhouse_contract::ports;

pub(crate) mod polls;

const TIMEOUT: Duration = Duration::from_secs(1);
const MAX_BYTES: usize = 64 << 10;

/// The agents of all workers, as an HTTP client sees them.
#[derive(Clone, Debug)]
pub struct Agents(Client<HttpConnector, Empty<Bytes>>);

impl Default for Agents {
    fn default() -> Self {
        Self(Client::builder(TokioExecutor::new()).build(HttpConnector::new()))
    }
}

impl Agents {
    /// The answer of the agent at this address to a GET of `path`. `nonce` is the nonce of its
    /// worker's membership document; an empty one is not sent.
    pub async fn answer(&self, address: &str, path: &str, nonce: &str) -> Option<Bytes> {
        let host = if address.contains(':') {
            format!("[{address}]")
        } else {
            address.to_owned()
        };
        let uri = format!("http://{host}:{}{path}", ports::AGENT_HTTP);
        let mut request = Request::get(uri);
        if !nonce.is_empty() {
            request = request.header(ports::NONCE_HEADER, nonce);
        }
        let request = request.body(Empty::new()).ok()?;
        let exchange = async {
            let response = self.0.request(request).await.ok()?;
            Limited::new(response.into_body(), MAX_BYTES)
                .collect()
                .await
                .ok()
        };
        let body = tokio::time::timeout(TIMEOUT, exchange).await.ok()??;
        Some(body.to_bytes())
    }
}
