//! For tests: a manual clock, the value of one series, and a series of each metric.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::watcher::Event;
use prometheus::{Registry, TextEncoder};
use roundhouse_api::{
    AvoidedNode, ConditionReason, ConditionType, MembershipStatus, TrainingJobStatus, WorkersStatus,
};
use roundhouse_planner::JobIdentity;
use roundhouse_planner::status::set_condition;

use super::api::Outcome;
use super::jobs::gpus::Gpus;
use super::labels::{Resource, Verb, Watched};
use super::{Clock, Metrics};
use crate::job::{JobKey, JobName};

/// A clock that stands still until a test advances it.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Mutex<Instant>>);

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl ManualClock {
    /// A clock that shows the present moment.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    pub fn advance(&self, seconds: u64) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *now += Duration::from_secs(seconds);
    }

    /// The clock in the form that [`Metrics::new`] takes.
    #[must_use]
    pub fn clock(&self) -> Clock {
        let shared = Arc::clone(&self.0);
        Arc::new(move || *shared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The value of a series as it is exposed, such as `jobs{state="Training"}`; `None` if there is no
/// such series.
#[must_use]
pub fn value(registry: &Registry, series: &str) -> Option<f64> {
    let text = TextEncoder::new()
        .encode_to_string(&registry.gather())
        .ok()?;
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    let mut found = lines.filter(|(name, _)| *name == series);
    found.next()?.1.parse().ok()
}

/// Gives each metric a series: reports one job that starts, has an incident and recovers.
pub fn touch(metrics: &Metrics) {
    let Metrics {
        work,
        queue,
        api,
        watch_ages,
        jobs,
    } = metrics;
    work.reconciled("Training", Duration::from_millis(2));
    work.acted("CreateWorker");
    work.watch_broke(Watched::Pods);
    watch_ages.received(Watched::Pods);
    work.lead(true);
    let name = JobName::new("ml", "digits");
    queue.due(&name, Duration::ZERO);
    queue.begun(&name);
    let took = Duration::from_millis(3);
    api.called(Verb::Get, Resource::of("pods"), Outcome::Status(200), took);
    let identity = JobIdentity {
        namespace: "ml".to_owned(),
        name: "digits".to_owned(),
        uid: "uid".to_owned(),
    };
    let job = JobKey::from(&identity);
    jobs.apply(&Event::Apply(identity));
    let statuses = [
        TrainingJobStatus::default(),
        status(1, true),
        status(2, false),
        status(2, true),
    ];
    for (before, after) in statuses.iter().zip(statuses.iter().skip(1)) {
        jobs.see(
            &job,
            after,
            Gpus {
                held: 2,
                training: 2,
            },
        );
        jobs.show(&job, after);
        jobs.stored(&job, before, after, Timestamp::UNIX_EPOCH);
    }
}

/// A status in a generation. From the second generation on, a worker has failed and its node is
/// avoided.
fn status(generation: u64, runs: bool) -> TrainingJobStatus {
    let now = Time(Timestamp::UNIX_EPOCH);
    let mut status = TrainingJobStatus {
        start_time: Some(now.clone()),
        membership: Some(MembershipStatus {
            nonce: String::new(),
            completed: String::new(),
            formed: 0,
            generation,
            world_size: 2,
            nodes: 2,
            order: String::new(),
            members: String::new(),
        }),
        workers: Some(WorkersStatus::default()),
        ..TrainingJobStatus::default()
    };
    let (kind, reason) = (
        ConditionType::Running,
        if runs {
            ConditionReason::Training
        } else {
            ConditionReason::Forming
        },
    );
    set_condition(&mut status, kind, runs, reason, "", Timestamp::UNIX_EPOCH);
    if generation > 1 {
        status.incidents.total = 1;
        status.incidents.last_generation = Some(1);
        status.avoid_nodes = vec![AvoidedNode {
            node: "n1".to_owned(),
            reason: "HardwareFault".to_owned(),
            until: now,
        }];
    }
    status
}
