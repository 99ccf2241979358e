//! What a watch tells, on its way through the proxy.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{Stream, select, unfold};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use kube::client::Body;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use super::proxy::Problem;
use super::traffic::{Open, Traffic, UnderWay};
use super::trouble::Part;

type Told = Result<Frame<Bytes>, Problem>;
/// What is told, and when.
type Due = (Instant, Told, UnderWay);

/// Event by event: read when it comes, and told when it is due.
pub(crate) fn told(
    traffic: Arc<Traffic>,
    resource: String,
    body: Body,
) -> impl Stream<Item = Told> + Send {
    let (now, once) = unbounded_channel();
    let (again, twice) = unbounded_channel();
    let open = Open::new(&traffic, resource.clone());
    tokio::spawn(read(traffic, resource, body, now, again));
    select(when_due(once), when_due(twice)).inspect(move |_| {
        let _ = &open;
    })
}

async fn read(
    traffic: Arc<Traffic>,
    resource: String,
    mut body: Body,
    told: UnboundedSender<Due>,
    again: UnboundedSender<Due>,
) {
    let (mut due, mut text) = (Instant::now(), Vec::new());
    loop {
        let frame = tokio::select! {
            () = told.closed() => return,
            frame = body.frame() => frame,
        };
        let Some(Ok(frame)) = frame else { return };
        text.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let event = Bytes::from(text.drain(..=end).collect::<Vec<u8>>());
            let event = || Ok(Frame::data(event.clone()));
            let part = traffic.part(&resource);
            let late = match part {
                Part::Late(by) => by,
                Part::Passes | Part::Twice(_) | Part::Cut => Duration::ZERO,
            };
            due = due.max(Instant::now() + late);
            if let Part::Twice(after) = part {
                let _ = again.send((due + after, event(), UnderWay::new(&traffic)));
            }
            let is_cut = part == Part::Cut;
            let event = if is_cut {
                Err("the watch is cut".into())
            } else {
                event()
            };
            if told.send((due, event, UnderWay::new(&traffic))).is_err() || is_cut {
                return;
            }
        }
    }
}

fn when_due(parts: UnboundedReceiver<Due>) -> impl Stream<Item = Told> + Send {
    let stream = unfold(parts, |mut parts| async move {
        let (due, part, under_way) = parts.recv().await?;
        sleep_until(due).await;
        drop(under_way);
        Some((part, parts))
    });
    stream.boxed()
}
