//! One course: a scenario, a fault, and a seed that says where it strikes.

use std::ops::RangeInclusive;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::iter;
use futures::try_join;
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use roundhouse_operator::runtime::api::metadata::version;
use roundhouse_tests::cluster::until;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::fault::Fault;
use super::history::History;
use super::proxy::Proxy;
use super::rest::World;
use super::scenario::{Goal, Scenario, Step};
use crate::gang::coscheduling;
use crate::stage::{Operator, SOON, Stage};

use self::life::{Life, operator};

mod deeds;
mod life;

/// Courses of one scenario at one time.
const AT_ONCE: usize = 4;
/// Until a job must be at rest.
const DEADLINE: Duration = Duration::from_mins(4);
/// What has not struck by then does not strike.
const LASTS: Duration = Duration::from_secs(15);
/// Nothing is asked or told for so long at rest.
const QUIET: Duration = Duration::from_secs(1);
/// A seed after which nothing strikes is no course. Of the shortest ones, with 15 requests, `Often` at 1 % strikes in one of
/// seven.
const TRIES: u64 = 150;

pub(crate) struct Course<'a> {
    stage: &'a Stage,
    namespace: String,
    proxy: Proxy,
    history: History,
    operator: Operator,
    is_ending: bool,
    /// Incidents that may be counted.
    incidents: RangeInclusive<u32>,
    /// Pods may tell of a crash that was counted in a status that is forgotten: then it does not count again.
    is_restored: bool,
    life: Life,
    needs_lease: bool,
    deaths: u32,
    /// Operators that have lost their Lease.
    losses: u32,
    wrong: Vec<String>,
}

/// How many courses of a scenario have an operator that dies after a write, one for each of its writes, and what is wrong
/// after them.
pub(crate) async fn deaths(stage: &Stage, scenario: Scenario) -> (u32, Vec<String>) {
    let one = |writes: u32| async move {
        let namespace = format!("{scenario:?}-dies-{writes}").to_lowercase();
        let course = run(stage, namespace, scenario, Fault::Dies, writes.into());
        let (deaths, why) = Box::pin(course).await;
        let tell = |why| format!("{scenario:?}, dies after {writes} writes: {why}");
        (deaths, why.into_iter().map(tell).collect::<Vec<_>>())
    };
    let mut courses = iter(0..).map(one).buffered(AT_ONCE);
    let (mut num_courses, mut wrong) = (0, Vec::new());
    // The first that survives has seen all writes.
    while let Some((1.., why)) = courses.next().await {
        num_courses += 1;
        wrong.extend(why);
    }
    (num_courses, wrong)
}

/// Runs a course in which the fault strikes; says what is wrong afterwards.
pub(crate) async fn violations(
    stage: &Stage,
    scenario: Scenario,
    fault: Fault,
    seed: u64,
) -> Vec<String> {
    for attempt in 0..TRIES {
        // The rate of `Often` follows the rest by three.
        let seed = seed + 3_000 * attempt;
        let namespace = format!("{scenario:?}-{fault:?}-{seed}").to_lowercase();
        let (strikes, wrong) = Box::pin(run(stage, namespace, scenario, fault, seed)).await;
        if strikes > 0 || !wrong.is_empty() {
            let tell = |wrong| format!("{scenario:?}, {fault:?}, seed {seed}: {wrong}");
            return wrong.into_iter().map(tell).collect();
        }
    }
    vec![format!(
        "{scenario:?}, {fault:?}, seed {seed}: nothing strikes"
    )]
}

async fn run(
    stage: &Stage,
    namespace: String,
    scenario: Scenario,
    fault: Fault,
    seed: u64,
) -> (u32, Vec<String>) {
    let (mut course, first) = Course::begin(stage, namespace, true).await;
    let (before, after) = (scenario.past(fault), scenario.steps());
    let mut wrong = Vec::new();
    for (index, (deed, goal)) in before.iter().chain(after).enumerate() {
        if index == before.len() {
            course.trouble(fault, seed, first).await;
        }
        course.deed(*deed).await;
        let is_between = index >= before.len() && index + 1 < before.len() + after.len();
        let reached = if is_between {
            Box::pin(course.reaches(*goal)).await
        } else {
            Box::pin(course.rests(*goal)).await
        };
        if let Err(why) = reached {
            wrong = why;
            break;
        }
    }
    wrong.extend(course.ends_history());
    let (made, expected) = (course.history.pods(), scenario.num_pods());
    // An older cache shows a job that is wanted where one is suspended, or gone.
    let most = expected * if fault == Fault::Older { 2 } else { 1 };
    if wrong.is_empty() && !(expected..=most).contains(&made.len()) {
        wrong.push(format!("{made:?} were made, not {expected} pods"));
    }
    if wrong.is_empty() && fault == Fault::Unrenewed && course.losses == 0 {
        wrong.push("no operator has lost its Lease".to_owned());
    }
    let strikes = course.proxy.traffic.end() + course.deaths;
    course.operator.kill().await;
    (strikes, wrong)
}

/// The version before anything is in it.
async fn make_namespace(stage: &Stage, name: &str) -> u64 {
    let namespace = json!({"metadata": {"name": name}});
    let namespaces: Api<Namespace> = Api::all(stage.client.clone());
    let namespace = serde_json::from_value(namespace).unwrap();
    let made = namespaces.create(&PostParams::default(), &namespace).await;
    version(made.unwrap().resource_version().as_deref())
}

impl<'a> Course<'a> {
    /// An operator of a new namespace, and the version before anything is in it.
    pub(super) async fn begin(
        stage: &'a Stage,
        namespace: String,
        needs_lease: bool,
    ) -> (Self, u64) {
        let first = make_namespace(stage, &namespace).await;
        let proxy = Proxy::start(stage.server.client("operator").unwrap()).await;
        let course = Self {
            stage,
            history: History::begin(&stage.client, &namespace, first),
            operator: operator(stage, proxy.config(), &namespace, needs_lease),
            namespace,
            proxy,
            is_ending: false,
            incidents: 0..=0,
            is_restored: false,
            life: Life::Lasts,
            needs_lease,
            deaths: 0,
            losses: 0,
            wrong: Vec::new(),
        };
        (course, first)
    }

    /// Does one thing after the other, each when the one before has come to rest. Returns what is wrong.
    pub(super) async fn goes(&mut self, steps: &[Step]) -> Vec<String> {
        for (deed, goal) in steps {
            self.deed(*deed).await;
            if let Err(wrong) = Box::pin(self.rests(*goal)).await {
                return wrong;
            }
        }
        Vec::new()
    }

    /// What is wrong in its history, which ends here.
    pub(super) fn ends_history(&mut self) -> Vec<String> {
        self.history.end();
        let mut wrong = self.history.violations(*self.incidents.end());
        wrong.append(&mut self.wrong);
        wrong
    }

    /// How many incidents were counted so far: from the fewest to the most.
    pub(super) fn incidents(&self) -> RangeInclusive<u32> {
        self.incidents.clone()
    }

    /// The history begins with what is there; so many incidents were before. `is_restored`: what was since a backup is
    /// forgotten.
    pub(super) async fn begins_history_anew(
        &mut self,
        incidents: RangeInclusive<u32>,
        is_restored: bool,
    ) {
        (self.is_ending, self.is_restored) = (false, is_restored);
        self.incidents = incidents;
        let (stage, namespace, all) = (self.stage, &self.namespace, ListParams::default());
        // An API server that begins is ready before all of its kinds are.
        let lists = until("all kinds are served", SOON, || async {
            let groups = coscheduling().groups_in(stage, namespace);
            let services: Api<Service> = Api::namespaced(stage.client.clone(), namespace);
            let policies: Api<NetworkPolicy> = Api::namespaced(stage.client.clone(), namespace);
            let (jobs, pods) = (stage.jobs(namespace), stage.pods(namespace));
            let others = try_join!(groups.list(&all), services.list(&all), policies.list(&all));
            let (Ok(_), Ok(jobs)) = (others, jobs.list(&all).await) else {
                return Ok(None);
            };
            Ok(pods.list(&all).await.ok().map(|pods| (jobs, pods)))
        });
        let (jobs, pods) = lists.await.unwrap();
        self.history = History::after(&stage.client, namespace, (&jobs, &pods), is_restored);
    }

    pub(super) async fn end(mut self) {
        self.operator.kill().await;
    }

    /// Waits until it is where it should be, be the trouble over or not.
    async fn reaches(&mut self, goal: Goal) -> Result<(), Vec<String>> {
        let begun = Instant::now();
        loop {
            let world = World::of(self.stage, &self.namespace).await.unwrap();
            let wrong = goal.complaints(&world, &self.incidents);
            if wrong.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > DEADLINE {
                return Err(wrong);
            }
            self.others_work(&world).await;
            self.replace_dead().await;
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the trouble is over and the job at rest, as the operator and the watcher beside know.
    async fn rests(&mut self, goal: Goal) -> Result<(), Vec<String>> {
        let begun = Instant::now();
        loop {
            let world = World::of(self.stage, &self.namespace).await.unwrap();
            let mut wrong = goal.complaints(&world, &self.incidents);
            let is_quiet = self.proxy.traffic.is_quiet(QUIET);
            if wrong.is_empty() && is_quiet || begun.elapsed() > LASTS {
                self.proxy.traffic.end();
            }
            let is_known = world.versions().all(|at| self.history.has(at));
            // Before it leads it does nothing, and that is no rest.
            let leads = self.operator.leads();
            if wrong.is_empty() && is_quiet && is_known && leads && self.proxy.traffic.is_over() {
                return Ok(());
            }
            if begun.elapsed() > DEADLINE {
                let over = self.proxy.traffic.is_over();
                wrong.push(format!(
                    "no rest; leads: {leads}, quiet: {is_quiet}, known: {is_known}, over: {over}"
                ));
                return Err(wrong);
            }
            self.others_work(&world).await;
            self.replace_dead().await;
            sleep(Duration::from_millis(100)).await;
        }
    }
}
