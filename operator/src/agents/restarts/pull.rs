//! The questions to the agents of members that are not Ready.

use std::sync::Arc;
use std::time::Duration;

use roundhouse_contract::ports;
use tokio::sync::mpsc::Sender;

use crate::agents::client::polls::Polls;
use crate::agents::restarts::Question;
use crate::controller::context::Context;
use crate::controller::priority::Wake;

/// A worker that is not Ready holds up others, so it is asked often.
const INTERVAL: Duration = Duration::from_millis(500);

/// Asks all, again and again; wakes jobs of which one told something new.
pub(crate) async fn pull(context: Arc<Context>, wake: Sender<Wake>) {
    let mut questions = Polls::new();
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                for Question { job, incarnation, address, nonce } in context.restarts.questions() {
                    questions.ask((job, incarnation), address, ports::RESTARTS_PATH, nonce);
                }
            }
            Some(((job, incarnation), answer)) = questions.next() => {
                let restarts = &context.restarts;
                let news = match answer {
                    Some(answer) => {
                        let told = serde_json::from_slice(&answer).ok();
                        restarts.answered(&job, &incarnation, told)
                    }
                    None => restarts.unanswered(&job, &incarnation),
                };
                if let Some(job) = news {
                    let _ = wake.send(Wake::by_workers(job)).await;
                }
            }
        }
    }
}
