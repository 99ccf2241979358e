//! etcd and the API server are killed and restarted from a backup, with a job of each scenario.
//! Each job has its own operator. After the restore the test repeats all steps since the backup.

use std::ops::RangeInclusive;
use std::time::Duration;

use futures::future::join_all;
use kube::api::ListParams;
use roundhouse_operator::runtime::api::metadata::version;
use tokio::time::{Instant, sleep_until, timeout};

use super::fault::Fault;
use super::scenario::Scenario;
use super::trial::Trial;
use crate::environment::{Environment, NAMESPACE};
use crate::g14_etcd_restore::copy;

/// In round 0 the jobs have settled before the restore. Each later round restores this much later
/// after the start of the steps.
const LONGER: Duration = Duration::from_millis(700);
/// Resource versions that may pass between the read of the newest one and the kill. Leases alone
/// cause about ten writes per second.
const MARGIN: u64 = 1_000;

/// The job of one scenario.
struct RestoredJob<'a> {
    scenario: Scenario,
    trial: Trial<'a>,
    /// The allowed number of incidents at the time of the backup.
    incidents: RangeInclusive<u32>,
    problems: Vec<String>,
}

impl<'a> RestoredJob<'a> {
    async fn begin(env: &'a Environment, scenario: Scenario, round: u32) -> Self {
        let namespace = format!("{scenario:?}-restored-{round}").to_lowercase();
        // An operator without a Lease keeps running and has the state that etcd has lost in its
        // caches. An operator with a Lease loses it while the API server starts, and its successor
        // starts with empty caches.
        let needs_lease = (scenario as usize).is_multiple_of(2);
        let (mut trial, _) = Trial::begin(env, namespace, needs_lease).await;
        trial.may_lose_lease();
        let mut problems = trial.run_steps(scenario.past(Fault::Restored)).await;
        // After its restart, an API server does not deliver events from before the restart.
        problems.extend(trial.end_history());
        Self {
            scenario,
            incidents: trial.incidents(),
            trial,
            problems,
        }
    }

    /// Takes the steps that the restore reverts.
    async fn advance(&mut self, round: u32) {
        let before = self.incidents.clone();
        self.trial.restart_history(before, false).await;
        let steps = Box::pin(self.trial.run_steps(self.scenario.steps()));
        if round == 0 {
            self.problems.extend(steps.await);
        } else {
            // The restore interrupts the steps at any point.
            let _ = timeout(LONGER * round, steps).await;
        }
        self.problems.extend(self.trial.end_history());
    }

    /// Repeats the steps after the restore.
    async fn repeat(mut self) -> (Scenario, Vec<String>) {
        let before = self.incidents.clone();
        self.trial.restart_history(before, true).await;
        let problems = Box::pin(self.trial.run_steps(self.scenario.steps())).await;
        self.problems.extend(problems);
        self.problems.extend(self.trial.end_history());
        self.trial.end().await;
        let describe = |problem| format!("{:?}, restored: {problem}", self.scenario);
        (
            self.scenario,
            self.problems.into_iter().map(describe).collect(),
        )
    }
}

/// Runs one round and returns the problems of each scenario. The backup is at least `age` old at
/// the restore.
pub(crate) async fn violations(
    env: &Environment,
    round: u32,
    age: Duration,
) -> Vec<(Scenario, Vec<String>)> {
    let begin = Scenario::wanted().map(|scenario| RestoredJob::begin(env, scenario, round));
    let mut jobs = join_all(begin).await;
    let backup = env.directory.path().join(format!("backup-{round}"));
    let made = env.server.restart(|etcd| copy(etcd, &backup), 0);
    made.await.unwrap();
    let until = Instant::now() + age;
    join_all(jobs.iter_mut().map(|job| job.advance(round))).await;
    sleep_until(until).await;
    let pods = env.pods(NAMESPACE).list(&ListParams::default()).await;
    let newest = version(pods.unwrap().metadata.resource_version.as_deref());
    let restored = env
        .server
        .restart(|etcd| copy(&backup, etcd), newest + MARGIN);
    restored.await.unwrap();
    join_all(jobs.into_iter().map(RestoredJob::repeat)).await
}
