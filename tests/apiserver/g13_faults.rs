//! Faults between the operator and the API server, in every scenario: broken, late or stale
//! watches, refused requests, lost responses, a crash of the operator after a write, and etcd
//! restored from a backup. After the fault the job must reach the state that it reaches without
//! the fault.

mod api_call;
pub(crate) mod fault;
mod history;
pub(crate) mod injection;
mod invariants;
pub(crate) mod proxy;
mod restore_rounds;
mod scenario;
mod steady_state;
mod traffic;
mod trial;
mod watch_stream;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::iter;
use kube::api::ListParams;
use roundhouse_tests::cluster::until;

use self::fault::Fault;
use self::scenario::Scenario;
use crate::environment::{Environment, NAMESPACE, TIMEOUT};
use crate::pod_groups::coscheduling;

/// Trials that run concurrently. A trial mostly waits.
const AT_ONCE: usize = 8;

/// Limit in MiB for the test with eight concurrent operators. Operators that have exited must not
/// leave memory behind.
const MOST_MEMORY: u64 = 256;

type Cell = (Fault, Scenario);

/// Results of the trials.
#[derive(Default)]
struct Table {
    /// The number of trials, and of those with a violation.
    cells: HashMap<Cell, (u32, u32)>,
    problems: Vec<String>,
}

/// An environment in which PodGroups are served.
async fn with_pod_groups() -> Arc<Environment> {
    let env = Environment::new().await;
    coscheduling().install(&env).await;
    until("PodGroups are served", TIMEOUT, || async {
        let groups = coscheduling().groups_in(&env, NAMESPACE);
        Ok(groups.list(&ListParams::default()).await.ok())
    })
    .await
    .unwrap();
    Arc::new(env)
}

async fn run(trials: Vec<(Fault, Scenario, u64)>) -> Table {
    let env = with_pod_groups().await;
    let mut table = Table::default();
    let trials = iter(trials).map(|(fault, scenario, seed)| {
        let env = Arc::clone(&env);
        tokio::spawn(async move {
            let problems = trial::violations(&env, scenario, fault, seed).await;
            ((fault, scenario), problems)
        })
    });
    let mut trials = trials.buffer_unordered(AT_ONCE);
    while let Some(trial) = trials.next().await {
        let (cell, problems) = trial.unwrap();
        table.add(cell, problems);
    }
    table
}

/// Peak resident memory of this process in MiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.unwrap().parse::<u64>().unwrap() / 1024
}

/// Restores etcd once per round, with a job of each scenario, from a backup that is at least `age`
/// old.
async fn run_restored(rounds: impl Iterator<Item = u32>, age: Duration) -> Table {
    let env = with_pod_groups().await;
    let mut table = Table::default();
    for round in rounds {
        for (scenario, problems) in restore_rounds::violations(&env, round, age).await {
            table.add((Fault::Restored, scenario), problems);
        }
    }
    table
}

impl Table {
    fn add(&mut self, cell: Cell, problems: Vec<String>) {
        let (num_trials, violations) = self.cells.entry(cell).or_default();
        *num_trials += 1;
        *violations += u32::from(!problems.is_empty());
        for problem in &problems {
            println!("{problem}");
        }
        self.problems.extend(problems);
    }

    /// A table with one row per fault and one column per scenario: how many trials had a violation.
    fn markdown(&self, faults: &[Fault]) -> String {
        let titles = Scenario::ALL.map(Scenario::title).join(" | ");
        let mut text = format!(
            "| | {titles} |\n|{}\n",
            "---|".repeat(Scenario::ALL.len() + 1)
        );
        for fault in faults {
            let cells = Scenario::ALL.map(|scenario| {
                let (trials, violations) = self.cells.get(&(*fault, scenario)).unwrap_or(&(0, 0));
                format!("{violations} of {trials}")
            });
            let _ = writeln!(text, "| {} | {} |", fault.title(), cells.join(" | "));
        }
        text
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_converges_to_the_fault_free_state() {
    let trials = Fault::OF_PROXY
        .into_iter()
        .zip(Scenario::ALL.into_iter().cycle());
    let trials = trials.map(|(fault, scenario)| match fault {
        // These faults are worst for a job that is suspended and resumed.
        Fault::Older | Fault::Repeated => (fault, Scenario::Suspends),
        _ => (fault, scenario),
    });
    let faults = trials.map(|(fault, scenario)| (fault, scenario, 1));
    let crashes = Scenario::ALL.map(|scenario| (Fault::Dies, scenario, 1));
    let table = run(faults.chain(crashes).collect()).await;
    assert_eq!(table.problems, [""; 0]);
}

#[ignore = "takes minutes: make test-long"]
#[tokio::test(flavor = "multi_thread")]
async fn crash_after_any_write_of_any_scenario_is_recovered() {
    let env = with_pod_groups().await;
    let trials = iter(Scenario::wanted()).map(|scenario| {
        let env = Arc::clone(&env);
        tokio::spawn(async move { (scenario, trial::crashes(&env, scenario).await) })
    });
    let mut trials = trials.buffer_unordered(2);
    let mut table = Table::default();
    while let Some(trial) = trials.next().await {
        let (scenario, (num_trials, problems)) = trial.unwrap();
        assert!(num_trials > 0, "{scenario:?} has no writes");
        println!("{scenario:?}: {num_trials} crashes");
        for problem in &problems {
            println!("{problem}");
        }
        let cell = (num_trials, u32::try_from(problems.len()).unwrap());
        table.cells.insert((Fault::Dies, scenario), cell);
        table.problems.extend(problems);
    }
    println!("{}", table.markdown(&[Fault::Dies]));
    assert_eq!(table.problems, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_scenarios_survive_an_etcd_restore() {
    let table = run_restored(1..=1, Duration::ZERO).await;
    assert_eq!(table.problems, [""; 0]);
}

#[ignore = "takes minutes: make test-long"]
#[tokio::test(flavor = "multi_thread")]
async fn all_scenarios_survive_etcd_restores_at_any_time() {
    let table = run_restored(0..4, Duration::ZERO).await;
    println!("{}", table.markdown(&[Fault::Restored]));
    assert_eq!(table.problems, [""; 0]);
}

#[ignore = "takes an hour: make test-long"]
#[tokio::test(flavor = "multi_thread")]
async fn all_scenarios_survive_an_hour_old_backup() {
    let table = run_restored(std::iter::once(0), Duration::from_secs(3600)).await;
    println!("{}", table.markdown(&[Fault::Restored]));
    assert_eq!(table.problems, [""; 0]);
}

#[ignore = "takes a quarter of an hour: make test-long"]
#[tokio::test(flavor = "multi_thread")]
async fn fault_matrix_converges_to_the_fault_free_state() {
    let seeds = std::env::var("ROUNDHOUSE_FAULT_SEEDS");
    let seeds = seeds.map_or(4, |text| text.parse().unwrap());
    // Optionally a single fault, to debug it.
    let only = std::env::var("ROUNDHOUSE_API_FAULT").ok();
    let is_wanted = |fault: Fault| only.as_ref().is_none_or(|it| *it == format!("{fault:?}"));
    let mut trials = Vec::new();
    for seed in 1..=seeds {
        for fault in Fault::OF_PROXY.into_iter().filter(|it| is_wanted(*it)) {
            trials.extend(Scenario::wanted().map(|scenario| (fault, scenario, seed)));
        }
    }
    let num_trials = trials.len();
    assert!(num_trials > 0, "no fault is called {only:?}");
    let table = run(trials).await;
    println!("{num_trials} trials\n{}", table.markdown(&Fault::OF_PROXY));
    assert_eq!(table.problems, [""; 0]);
    let memory = peak_memory();
    println!("the test and all operators in it: {memory} MiB at most");
    assert!(memory < MOST_MEMORY, "{memory} MiB");
}
