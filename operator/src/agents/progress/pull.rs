//! The questions to the agents of all jobs that train.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};
use roundhouse_contract::{Formed, Progress as Steps, Told, ports};
use tokio::sync::mpsc::Sender;
use tokio::time::MissedTickBehavior;

use crate::agents::client::polls::Polls;
use crate::agents::progress::Progress;
use crate::controller::context::Context;
use crate::controller::priority::Wake;
use crate::job::{JobKey, JobName};
use roundhouse_api::unreadable::Guarded;

/// Between two looks at who is to be asked.
const TICK: Duration = Duration::from_secs(1);

/// Asks all jobs, again and again; wakes those that told something new.
pub(crate) async fn pull(context: Arc<Context>, wake: Sender<Wake>, jobs: Store<Guarded>) {
    let mut questions = Polls::new();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let exists = |key: &JobKey, JobName { namespace, name }: &JobName| {
        let found = jobs.get(&ObjectRef::new(name).within(namespace));
        found.is_some_and(|found| found.uid().as_ref() == Some(&key.uid))
    };
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                for (job, address) in context.progress.questions(exists, Instant::now()) {
                    questions.ask(job, address, ports::PROGRESS_PATH, String::new());
                }
            }
            Some((job, answer)) = questions.next() => {
                let news = answer.and_then(|answer| hear(&context.progress, &job, &answer));
                if let Some(job) = news {
                    let _ = wake.send(Wake::by_other(job)).await;
                }
            }
        }
    }
}

/// Takes in an answer; returns the job to wake, if it is to be looked at now.
fn hear(progress: &Progress, job: &JobKey, answer: &[u8]) -> Option<JobName> {
    let now = Instant::now();
    if let Ok(told) = serde_json::from_slice::<Told<Steps>>(answer) {
        return progress.hear(job, told.of(&job.uid)?, now);
    }
    let told: Told<Formed> = serde_json::from_slice(answer).ok()?;
    progress.hear_formed(job, told.of(&job.uid)?.formed, now)
}
