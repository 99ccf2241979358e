//! The questions to the agents of members that are not Ready.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::iter;
use roundhouse_contract::ports;
use tokio::sync::mpsc::Sender;

use crate::ask::Agents;
use crate::context::Context;
use crate::lane::Wake;

/// A worker that is not Ready holds up others, so it is asked often.
const INTERVAL: Duration = Duration::from_millis(500);
const AT_ONCE: usize = 32;

/// Asks all, again and again; wakes jobs of which one told something new.
pub(crate) async fn pull(context: Arc<Context>, wake: Sender<Wake>) {
    let agents = Agents::default();
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let asked = iter(context.restarts.questions()).map(|(job, incarnation, address)| {
            let agents = &agents;
            async move {
                let told = agents.ask(&address, ports::RESTARTS_PATH).await;
                (job, incarnation, told)
            }
        });
        let mut answers = asked.buffer_unordered(AT_ONCE);
        while let Some((job, incarnation, told)) = answers.next().await {
            let news = told.and_then(|told| context.restarts.hear(&job, &incarnation, told));
            if let Some(job) = news {
                let _ = wake.send(Wake::by_workers(job)).await;
            }
        }
    }
}
