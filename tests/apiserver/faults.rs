//! Faults between the operator and the API server, in every scenario: watches that break off, come late, or are those of an
//! older cache, refusals, and answers that are lost; the operator's death after a write, and etcd restored from a backup.
//! Afterwards the job is where it would be without them.

mod asked;
mod course;
pub(crate) mod fault;
mod history;
pub(crate) mod proxy;
mod rest;
mod restored;
mod scenario;
mod told;
mod traffic;
pub(crate) mod trouble;

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
use crate::gang::coscheduling;
use crate::stage::{NAMESPACE, SOON, Stage};

/// Courses at one time: most of it is waiting.
const AT_ONCE: usize = 8;

/// In MiB, of a test with eight operators at a time, however many there were before.
const MOST_MEMORY: u64 = 256;

type Cell = (Fault, Scenario);

/// Courses and violations.
#[derive(Default)]
struct Table {
    cells: HashMap<Cell, (u32, u32)>,
    wrong: Vec<String>,
}

async fn stage() -> Arc<Stage> {
    let stage = Stage::new().await;
    coscheduling().install(&stage).await;
    until("PodGroups are served", SOON, || async {
        let groups = coscheduling().groups_in(&stage, NAMESPACE);
        Ok(groups.list(&ListParams::default()).await.ok())
    })
    .await
    .unwrap();
    Arc::new(stage)
}

async fn run(courses: Vec<(Fault, Scenario, u64)>) -> Table {
    let stage = stage().await;
    let mut table = Table::default();
    let courses = iter(courses).map(|(fault, scenario, seed)| {
        let stage = Arc::clone(&stage);
        tokio::spawn(async move {
            let wrong = course::violations(&stage, scenario, fault, seed).await;
            ((fault, scenario), wrong)
        })
    });
    let mut courses = courses.buffer_unordered(AT_ONCE);
    while let Some(course) = courses.next().await {
        let (cell, wrong) = course.unwrap();
        table.add(cell, wrong);
    }
    table
}

/// The most so far, in MiB, of this process.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.unwrap().parse::<u64>().unwrap() / 1024
}

/// etcd is restored once in each round, under jobs of all scenarios, from a backup that is so old at least.
async fn run_restored(rounds: impl Iterator<Item = u32>, age: Duration) -> Table {
    let stage = stage().await;
    let mut table = Table::default();
    for round in rounds {
        for (scenario, wrong) in restored::violations(&stage, round, age).await {
            table.add((Fault::Restored, scenario), wrong);
        }
    }
    table
}

impl Table {
    fn add(&mut self, cell: Cell, wrong: Vec<String>) {
        let (num_courses, violations) = self.cells.entry(cell).or_default();
        *num_courses += 1;
        *violations += u32::from(!wrong.is_empty());
        for wrong in &wrong {
            println!("{wrong}");
        }
        self.wrong.extend(wrong);
    }

    /// As in the docs: courses with a violation of all courses, for each fault and scenario.
    fn markdown(&self, faults: &[Fault]) -> String {
        let titles = Scenario::ALL.map(Scenario::title).join(" | ");
        let mut text = format!(
            "| | {titles} |\n|{}\n",
            "---|".repeat(Scenario::ALL.len() + 1)
        );
        for fault in faults {
            let cells = Scenario::ALL.map(|scenario| {
                let (courses, violations) = self.cells.get(&(*fault, scenario)).unwrap_or(&(0, 0));
                format!("{violations} of {courses}")
            });
            let _ = writeln!(text, "| {} | {} |", fault.title(), cells.join(" | "));
        }
        text
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_before_the_api_server_leaves_a_job_where_it_would_be_without_it() {
    let courses = Fault::OF_PROXY
        .into_iter()
        .zip(Scenario::ALL.into_iter().cycle());
    let courses = courses.map(|(fault, scenario)| match fault {
        // To a job that is suspended and resumed these do most drift.
        Fault::Older | Fault::Repeated => (fault, Scenario::Suspends),
        _ => (fault, scenario),
    });
    let faults = courses.map(|(fault, scenario)| (fault, scenario, 1));
    let deaths = Scenario::ALL.map(|scenario| (Fault::Dies, scenario, 1));
    let table = run(faults.chain(deaths).collect()).await;
    assert_eq!(table.wrong, [""; 0]);
}

#[ignore = "takes minutes: make test-long"]
#[tokio::test(flavor = "multi_thread")]
async fn whichever_write_of_hundreds_is_the_last_one_the_next_operator_goes_on() {
    let stage = stage().await;
    let courses = iter(Scenario::wanted()).map(|scenario| {
        let stage = Arc::clone(&stage);
        tokio::spawn(async move { (scenario, course::deaths(&stage, scenario).await) })
    });
    let mut courses = courses.buffer_unordered(2);
    let mut table = Table::default();
    while let Some(course) = courses.next().await {
        let (scenario, (num_courses, wrong)) = course.unwrap();
        assert!(num_courses > 0, "{scenario:?} has no writes");
        println!("{scenario:?}: {num_courses} deaths");
        for wrong in &wrong {
            println!("{wrong}");
        }
        let cell = (num_courses, u32::try_from(wrong.len()).unwrap());
        table.cells.insert((Fault::Dies, scenario), cell);
        table.wrong.extend(wrong);
    }
    println!("{}", table.markdown(&[Fault::Dies]));
    assert_eq!(table.wrong, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_jobs_go_on_when_etcd_was_restored_in_the_midst_of_what_happens_to_them() {
    let table = run_restored(1..=1, Duration::ZERO).await;
    assert_eq!(table.wrong, [""; 0]);
}

#[ignore = "takes minutes: make test-long"]
#[tokio::test(flavor = "multi_thread")]
async fn whenever_etcd_is_restored_from_an_older_backup_all_jobs_go_on() {
    let table = run_restored(0..4, Duration::ZERO).await;
    println!("{}", table.markdown(&[Fault::Restored]));
    assert_eq!(table.wrong, [""; 0]);
}

#[ignore = "takes an hour: make test-long"]
#[tokio::test(flavor = "multi_thread")]
async fn jobs_go_on_when_etcd_was_restored_from_a_backup_that_is_an_hour_old() {
    let table = run_restored(std::iter::once(0), Duration::from_secs(3600)).await;
    println!("{}", table.markdown(&[Fault::Restored]));
    assert_eq!(table.wrong, [""; 0]);
}

#[ignore = "takes a quarter of an hour: make test-long"]
#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_courses_of_faults_before_the_api_server_leave_jobs_where_they_would_be() {
    let seeds = std::env::var("ROUNDHOUSE_FAULT_SEEDS");
    let seeds = seeds.map_or(4, |text| text.parse().unwrap());
    // One alone, to look for what it does.
    let only = std::env::var("ROUNDHOUSE_API_FAULT").ok();
    let is_wanted = |fault: Fault| only.as_ref().is_none_or(|it| *it == format!("{fault:?}"));
    let mut courses = Vec::new();
    for seed in 1..=seeds {
        for fault in Fault::OF_PROXY.into_iter().filter(|it| is_wanted(*it)) {
            courses.extend(Scenario::wanted().map(|scenario| (fault, scenario, seed)));
        }
    }
    let num_courses = courses.len();
    assert!(num_courses > 0, "no fault is called {only:?}");
    let table = run(courses).await;
    println!(
        "{num_courses} courses\n{}",
        table.markdown(&Fault::OF_PROXY)
    );
    assert_eq!(table.wrong, [""; 0]);
    let memory = peak_memory();
    println!("the test and all operators in it: {memory} MiB at most");
    assert!(memory < MOST_MEMORY, "{memory} MiB");
}
