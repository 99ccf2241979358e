//! etcd and the API server are killed, and come back as they were some time ago. The jobs of all scenarios are there, each
//! with an operator of its own, and what was done since the backup is done again.

use std::ops::RangeInclusive;
use std::time::Duration;

use futures::future::join_all;
use kube::api::ListParams;
use roundhouse_operator::runtime::api::metadata::version;
use tokio::time::{Instant, sleep_until, timeout};

use super::course::Course;
use super::fault::Fault;
use super::scenario::Scenario;
use crate::restored::copy;
use crate::stage::{NAMESPACE, Stage};

/// In the first round the jobs are at rest when the backup comes back; in each later one they have had so much longer.
const LONGER: Duration = Duration::from_millis(700);
/// Writes between the look at the newest version and the kill: Leases alone are some ten a second.
const MARGIN: u64 = 1_000;

/// One job.
struct Story<'a> {
    scenario: Scenario,
    course: Course<'a>,
    /// At the backup.
    incidents: RangeInclusive<u32>,
    wrong: Vec<String>,
}

impl<'a> Story<'a> {
    async fn begin(stage: &'a Stage, scenario: Scenario, round: u32) -> Self {
        let namespace = format!("{scenario:?}-restored-{round}").to_lowercase();
        // An operator without a Lease lasts, and knows what etcd has forgotten. One with a Lease loses it while the API server
        // starts, and the next one has seen nothing else.
        let needs_lease = (scenario as usize).is_multiple_of(2);
        let (mut course, _) = Course::begin(stage, namespace, needs_lease).await;
        course.may_lose_lease();
        let mut wrong = course.goes(scenario.past(Fault::Restored)).await;
        // An API server that begins tells nothing of what was before.
        wrong.extend(course.ends_history());
        Self {
            scenario,
            incidents: course.incidents(),
            course,
            wrong,
        }
    }

    /// What will be forgotten.
    async fn goes_on(&mut self, round: u32) {
        let before = self.incidents.clone();
        self.course.begins_history_anew(before, false).await;
        let goes = Box::pin(self.course.goes(self.scenario.steps()));
        if round == 0 {
            self.wrong.extend(goes.await);
        } else {
            // Wherever it is by then.
            let _ = timeout(LONGER * round, goes).await;
        }
        self.wrong.extend(self.course.ends_history());
    }

    /// The same once more, after the backup came back.
    async fn goes_again(mut self) -> (Scenario, Vec<String>) {
        let before = self.incidents.clone();
        self.course.begins_history_anew(before, true).await;
        let wrong = Box::pin(self.course.goes(self.scenario.steps())).await;
        self.wrong.extend(wrong);
        self.wrong.extend(self.course.ends_history());
        self.course.end().await;
        let tell = |wrong| format!("{:?}, restored: {wrong}", self.scenario);
        (self.scenario, self.wrong.into_iter().map(tell).collect())
    }
}

/// What is wrong in each scenario after one round. The backup is so old at least when it comes back.
pub(crate) async fn violations(
    stage: &Stage,
    round: u32,
    age: Duration,
) -> Vec<(Scenario, Vec<String>)> {
    let begin = Scenario::wanted().map(|scenario| Story::begin(stage, scenario, round));
    let mut stories = join_all(begin).await;
    let backup = stage.directory.path().join(format!("backup-{round}"));
    let made = stage.server.restart(|etcd| copy(etcd, &backup), 0);
    made.await.unwrap();
    let until = Instant::now() + age;
    join_all(stories.iter_mut().map(|story| story.goes_on(round))).await;
    sleep_until(until).await;
    let pods = stage.pods(NAMESPACE).list(&ListParams::default()).await;
    let newest = version(pods.unwrap().metadata.resource_version.as_deref());
    let restored = stage
        .server
        .restart(|etcd| copy(&backup, etcd), newest + MARGIN);
    restored.await.unwrap();
    join_all(stories.into_iter().map(Story::goes_again)).await
}
