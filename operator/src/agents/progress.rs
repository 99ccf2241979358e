//! The polls of the agents of all jobs that train.

use std::sync::Arc;
use std::time::{Duration, Instant};

use roundhouse_contract::{Formed, Progress as Steps, ProgressReport, ports};
use tokio::sync::mpsc::Sender;
use tokio::time::MissedTickBehavior;

use crate::agents::client::polls::Polls;
use crate::job::{JobKey, JobName};
use crate::memory::JobMemories;
use crate::watch::wake::Wake;

/// How often the due polls are determined.
const TICK: Duration = Duration::from_secs(1);

/// Polls all jobs that train until the operator stops, and wakes those that reported something new.
pub(crate) async fn poll(memories: Arc<JobMemories>, wake: Sender<Wake>) {
    let mut polls = Polls::new();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                for (job, address) in memories.progress_polls(Instant::now()) {
                    polls.start(job, address, ports::PROGRESS_PATH, String::new());
                }
            }
            Some((job, answer)) = polls.next() => {
                let news = answer.and_then(|answer| reported(&memories, &job, &answer));
                if let Some(job) = news {
                    // Closed only when the operator stops.
                    let _ = wake.send(Wake::by_other(job)).await;
                }
            }
        }
    }
}

/// Applies an answer. Returns the job to wake, if the answer wakes it.
fn reported(memories: &JobMemories, job: &JobKey, answer: &[u8]) -> Option<JobName> {
    let now = Instant::now();
    if let Ok(report) = serde_json::from_slice::<ProgressReport<Steps>>(answer) {
        return memories.progress_reported(job, report.of(&job.uid)?, now);
    }
    let report: ProgressReport<Formed> = serde_json::from_slice(answer).ok()?;
    memories.formed_reported(job, report.of(&job.uid)?.formed, now)
}
