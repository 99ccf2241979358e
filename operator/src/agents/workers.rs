//! The polls of the agents of members that are not Ready.

use std::sync::Arc;
use std::time::Duration;

use roundhouse_contract::ports;
use tokio::sync::mpsc::Sender;
use tokio::time::{Interval, MissedTickBehavior};

use crate::agents::client::polls::Polls;
use crate::memory::JobMemories;
use crate::memory::workers::Poll;
use crate::watch::wake::Wake;

/// A worker that is not Ready delays the other workers, so its agent is polled often.
const INTERVAL: Duration = Duration::from_millis(500);

/// Waits until polls are due: at each tick, and when one was requested.
async fn due(ticks: &mut Interval, memories: &JobMemories) {
    tokio::select! {
        _ = ticks.tick() => {}
        () = memories.poll_requested() => {}
    }
}

/// Polls the agents until the operator stops, and wakes the jobs of those that reported something
/// new.
pub(crate) async fn poll(memories: Arc<JobMemories>, wake: Sender<Wake>) {
    let mut polls = Polls::new();
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = due(&mut ticks, &memories) => {
                for Poll { job, incarnation, address, nonce } in memories.worker_polls() {
                    polls.start((job, incarnation), address, ports::RESTARTS_PATH, nonce);
                }
            }
            Some(((job, incarnation), answer)) = polls.next() => {
                let news = match answer {
                    Some(answer) => {
                        let restarts = serde_json::from_slice(&answer).ok();
                        memories.worker_answered(&job, &incarnation, restarts)
                    }
                    None => memories.worker_unanswered(&job, &incarnation),
                };
                if let Some(job) = news {
                    // Closed only when the operator stops.
                    let _ = wake.send(Wake::by_workers(job)).await;
                }
            }
        }
    }
}
