//! A trial: a job goes through a scenario while a fault occurs. A seed chooses the point of the
//! fault.

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
use super::scenario::{Goal, Scenario, Step};
use super::steady_state::ClusterState;
use crate::environment::{Environment, Operator, TIMEOUT};
use crate::pod_groups::coscheduling;

use self::operators::{Lifetime, operator};

mod actions;
mod operators;

/// Concurrent trials of one scenario in [`crashes`].
const AT_ONCE: usize = 4;
/// How long a job may take until it is settled.
const DEADLINE: Duration = Duration::from_mins(4);
/// A fault that has not occurred after this time is ended.
const LASTS: Duration = Duration::from_secs(15);
/// A job is settled only after this time without a request or a watch event.
const QUIET: Duration = Duration::from_secs(1);
/// Seeds to try until one makes the fault occur. In the shortest trials, with 15 requests, `Often`
/// at 1 % occurs in one of seven.
const TRIES: u64 = 150;

pub(crate) struct Trial<'a> {
    env: &'a Environment,
    namespace: String,
    proxy: Proxy,
    history: History,
    operator: Operator,
    is_ending: bool,
    /// The allowed number of incidents.
    incidents: RangeInclusive<u32>,
    /// etcd was restored. A pod may report a crash that only a lost status has counted; the
    /// operator does not count it again.
    is_restored: bool,
    lifetime: Lifetime,
    needs_lease: bool,
    /// Operators that have crashed.
    crashes: u32,
    /// Operators that have lost their Lease.
    losses: u32,
    problems: Vec<String>,
}

/// Runs a scenario once for each write of the operator, which crashes after this write. Returns the
/// number of trials and the problems.
pub(crate) async fn crashes(env: &Environment, scenario: Scenario) -> (u32, Vec<String>) {
    let one = |writes: u32| async move {
        let namespace = format!("{scenario:?}-dies-{writes}").to_lowercase();
        let trial = run(env, namespace, scenario, Fault::Dies, writes.into());
        let (crashes, why) = Box::pin(trial).await;
        let describe = |why| format!("{scenario:?}, crash after {writes} writes: {why}");
        (crashes, why.into_iter().map(describe).collect::<Vec<_>>())
    };
    let mut trials = iter(0..).map(one).buffered(AT_ONCE);
    let (mut num_trials, mut problems) = (0, Vec::new());
    // The first trial without a crash has had all writes.
    while let Some((1.., why)) = trials.next().await {
        num_trials += 1;
        problems.extend(why);
    }
    (num_trials, problems)
}

/// Runs a trial in which the fault occurs, and returns the problems.
pub(crate) async fn violations(
    env: &Environment,
    scenario: Scenario,
    fault: Fault,
    seed: u64,
) -> Vec<String> {
    for attempt in 0..TRIES {
        // A multiple of three keeps the rate of `Often`.
        let seed = seed + 3_000 * attempt;
        let namespace = format!("{scenario:?}-{fault:?}-{seed}").to_lowercase();
        let (strikes, problems) = Box::pin(run(env, namespace, scenario, fault, seed)).await;
        if strikes > 0 || !problems.is_empty() {
            let describe = |problem| format!("{scenario:?}, {fault:?}, seed {seed}: {problem}");
            return problems.into_iter().map(describe).collect();
        }
    }
    vec![format!(
        "{scenario:?}, {fault:?}, seed {seed}: the fault never occurred"
    )]
}

async fn run(
    env: &Environment,
    namespace: String,
    scenario: Scenario,
    fault: Fault,
    seed: u64,
) -> (u32, Vec<String>) {
    let (mut trial, first) = Trial::begin(env, namespace, true).await;
    let (before, after) = (scenario.past(fault), scenario.steps());
    let mut problems = Vec::new();
    for (index, (action, goal)) in before.iter().chain(after).enumerate() {
        if index == before.len() {
            trial.inject(fault, seed, first).await;
        }
        trial.act(*action).await;
        let is_between = index >= before.len() && index + 1 < before.len() + after.len();
        let reached = if is_between {
            Box::pin(trial.until_goal(*goal)).await
        } else {
            Box::pin(trial.until_settled(*goal)).await
        };
        if let Err(why) = reached {
            problems = why;
            break;
        }
    }
    problems.extend(trial.end_history());
    let (made, expected) = (trial.history.pods(), scenario.num_pods());
    // An older cache can show a running job that is suspended or deleted by now, so the operator
    // may create its pods once more.
    let most = expected * if fault == Fault::Older { 2 } else { 1 };
    if problems.is_empty() && !(expected..=most).contains(&made.len()) {
        problems.push(format!("created {made:?}, expected {expected} pods"));
    }
    if problems.is_empty() && fault == Fault::Unrenewed && trial.losses == 0 {
        problems.push("no operator has lost its Lease".to_owned());
    }
    let strikes = trial.proxy.traffic.end() + trial.crashes;
    trial.operator.kill().await;
    (strikes, problems)
}

/// Creates a namespace. Returns its resource version, which precedes those of all objects in it.
async fn create_namespace(env: &Environment, name: &str) -> u64 {
    let namespace = json!({"metadata": {"name": name}});
    let namespaces: Api<Namespace> = Api::all(env.client.clone());
    let namespace = serde_json::from_value(namespace).unwrap();
    let made = namespaces.create(&PostParams::default(), &namespace).await;
    version(made.unwrap().resource_version().as_deref())
}

impl<'a> Trial<'a> {
    /// Starts an operator of a new namespace. Also returns a resource version that precedes those
    /// of all objects in it.
    pub(super) async fn begin(
        env: &'a Environment,
        namespace: String,
        needs_lease: bool,
    ) -> (Self, u64) {
        let first = create_namespace(env, &namespace).await;
        let proxy = Proxy::start(env.server.client("operator").unwrap()).await;
        let trial = Self {
            env,
            history: History::begin(&env.client, &namespace, first),
            operator: operator(env, proxy.config(), &namespace, needs_lease),
            namespace,
            proxy,
            is_ending: false,
            incidents: 0..=0,
            is_restored: false,
            lifetime: Lifetime::Lasts,
            needs_lease,
            crashes: 0,
            losses: 0,
            problems: Vec::new(),
        };
        (trial, first)
    }

    /// Takes each step after the job has settled from the previous one. Returns the problems.
    pub(super) async fn run_steps(&mut self, steps: &[Step]) -> Vec<String> {
        for (action, goal) in steps {
            self.act(*action).await;
            if let Err(problems) = Box::pin(self.until_settled(*goal)).await {
                return problems;
            }
        }
        Vec::new()
    }

    /// Ends the history and returns its problems.
    pub(super) fn end_history(&mut self) -> Vec<String> {
        self.history.end();
        let mut problems = self.history.violations(*self.incidents.end());
        problems.append(&mut self.problems);
        problems
    }

    /// The allowed number of incidents so far.
    pub(super) fn incidents(&self) -> RangeInclusive<u32> {
        self.incidents.clone()
    }

    /// Starts a new history from the current objects, after this number of incidents.
    /// `is_restored`: etcd has lost all writes since a backup.
    pub(super) async fn restart_history(
        &mut self,
        incidents: RangeInclusive<u32>,
        is_restored: bool,
    ) {
        (self.is_ending, self.is_restored) = (false, is_restored);
        self.incidents = incidents;
        let (env, namespace, all) = (self.env, &self.namespace, ListParams::default());
        // An API server that starts is ready before it serves all kinds.
        let lists = until("all kinds are served", TIMEOUT, || async {
            let groups = coscheduling().groups_in(env, namespace);
            let services: Api<Service> = Api::namespaced(env.client.clone(), namespace);
            let policies: Api<NetworkPolicy> = Api::namespaced(env.client.clone(), namespace);
            let (jobs, pods) = (env.jobs(namespace), env.pods(namespace));
            let others = try_join!(groups.list(&all), services.list(&all), policies.list(&all));
            let (Ok(_), Ok(jobs)) = (others, jobs.list(&all).await) else {
                return Ok(None);
            };
            Ok(pods.list(&all).await.ok().map(|pods| (jobs, pods)))
        });
        let (jobs, pods) = lists.await.unwrap();
        self.history = History::after(&env.client, namespace, (&jobs, &pods), is_restored);
    }

    pub(super) async fn end(mut self) {
        self.operator.kill().await;
    }

    /// Waits until the goal is reached, during the fault or after it.
    async fn until_goal(&mut self, goal: Goal) -> Result<(), Vec<String>> {
        let begun = Instant::now();
        loop {
            let cluster = ClusterState::of(self.env, &self.namespace).await.unwrap();
            let problems = goal.problems(&cluster, &self.incidents);
            if problems.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > DEADLINE {
                return Err(problems);
            }
            self.run_others(&cluster).await;
            self.replace_exited().await;
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the fault is over, the goal is reached, and both the operator and the history
    /// have received the current state.
    async fn until_settled(&mut self, goal: Goal) -> Result<(), Vec<String>> {
        let begun = Instant::now();
        loop {
            let cluster = ClusterState::of(self.env, &self.namespace).await.unwrap();
            let mut problems = goal.problems(&cluster, &self.incidents);
            let is_quiet = self.proxy.traffic.is_quiet(QUIET);
            if problems.is_empty() && is_quiet || begun.elapsed() > LASTS {
                self.proxy.traffic.end();
            }
            let is_known = cluster.versions().all(|at| self.history.has(at));
            // An operator that does not lead yet is quiet without being settled.
            let leads = self.operator.is_leader();
            if problems.is_empty() && is_quiet && is_known && leads && self.proxy.traffic.is_over()
            {
                return Ok(());
            }
            if begun.elapsed() > DEADLINE {
                let over = self.proxy.traffic.is_over();
                problems.push(format!(
                    "not settled; leads: {leads}, quiet: {is_quiet}, known: {is_known}, over: {over}"
                ));
                return Err(problems);
            }
            self.run_others(&cluster).await;
            self.replace_exited().await;
            sleep(Duration::from_millis(100)).await;
        }
    }
}
