//! What a watch tells, on its way through the proxy.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{Stream, unfold};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use kube::client::Body;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, sleep_until};

use super::proxy::Problem;
use super::traffic::{Open, Traffic, UnderWay};
use super::trouble::Part;

/// Part by part: read when it comes, and told when it is due.
pub(crate) fn told(
    traffic: Arc<Traffic>,
    resource: String,
    mut body: Body,
) -> impl Stream<Item = Result<Frame<Bytes>, Problem>> + Send {
    let (read, parts) = unbounded_channel();
    let open = Open::new(&traffic, resource.clone());
    tokio::spawn(async move {
        let mut due = Instant::now();
        loop {
            let frame = tokio::select! {
                () = read.closed() => return,
                frame = body.frame() => frame,
            };
            let Some(Ok(frame)) = frame else { return };
            let (late, told) = match traffic.part(&resource) {
                Part::Passes => (Duration::ZERO, Ok(frame)),
                Part::Late(by) => (by, Ok(frame)),
                Part::Cut => (Duration::ZERO, Err("the watch is cut".into())),
            };
            let is_cut = told.is_err();
            due = due.max(Instant::now() + late);
            let part = (due, told, UnderWay::new(&traffic));
            if read.send(part).is_err() || is_cut {
                return;
            }
        }
    });
    unfold((parts, open), |(mut parts, open)| async move {
        let (due, part, under_way) = parts.recv().await?;
        sleep_until(due).await;
        drop(under_way);
        Some((part, (parts, open)))
    })
}
