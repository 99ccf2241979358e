//! The events of a watch on their way through the proxy.

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

use super::injection::EventOutcome;
use super::proxy::Problem;
use super::traffic::{InFlight, OpenWatch, Traffic};

type Event = Result<Frame<Bytes>, Problem>;
/// An event, and when the proxy delivers it.
type Due = (Instant, Event, InFlight);

/// Relays a watch event by event. It reads each event when it arrives and delivers it when it is
/// due.
pub(crate) fn relay_events(
    traffic: Arc<Traffic>,
    resource: String,
    body: Body,
) -> impl Stream<Item = Event> + Send {
    let (send_once, once) = unbounded_channel();
    let (send_again, again) = unbounded_channel();
    let open = OpenWatch::new(&traffic, resource.clone());
    tokio::spawn(read(traffic, resource, body, send_once, send_again));
    select(when_due(once), when_due(again)).inspect(move |_| {
        let _ = &open;
    })
}

async fn read(
    traffic: Arc<Traffic>,
    resource: String,
    mut body: Body,
    once: UnboundedSender<Due>,
    again: UnboundedSender<Due>,
) {
    let (mut due, mut text) = (Instant::now(), Vec::new());
    loop {
        let frame = tokio::select! {
            () = once.closed() => return,
            frame = body.frame() => frame,
        };
        let Some(Ok(frame)) = frame else { return };
        text.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let event = Bytes::from(text.drain(..=end).collect::<Vec<u8>>());
            let event = || Ok(Frame::data(event.clone()));
            let outcome = traffic.event(&resource);
            let delay = match outcome {
                EventOutcome::Late(by) => by,
                EventOutcome::Passes | EventOutcome::Twice(_) | EventOutcome::Cut => Duration::ZERO,
            };
            due = due.max(Instant::now() + delay);
            if let EventOutcome::Twice(after) = outcome {
                let _ = again.send((due + after, event(), InFlight::new(&traffic)));
            }
            let is_cut = outcome == EventOutcome::Cut;
            let event = if is_cut {
                Err("the watch is cut".into())
            } else {
                event()
            };
            if once.send((due, event, InFlight::new(&traffic))).is_err() || is_cut {
                return;
            }
        }
    }
}

fn when_due(events: UnboundedReceiver<Due>) -> impl Stream<Item = Event> + Send {
    let stream = unfold(events, |mut events| async move {
        let (due, event, in_flight) = events.recv().await?;
        sleep_until(due).await;
        drop(in_flight);
        Some((event, events))
    });
    stream.boxed()
}
