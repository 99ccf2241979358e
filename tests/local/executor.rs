//! Output, refusals and the end of the local executor itself.

use roundhouse_tests::local::{LocalRun, job};
use rustix::process::Signal;

#[test]
fn killed_executor_ends_all_its_processes() {
    let mut run = LocalRun::start(&job(2, 1_000_000), &[]).unwrap();
    run.wait_for("steps", |run| run.step() > 5).unwrap();
    let agents = run.agents();
    let all: Vec<u32> = agents
        .iter()
        .flat_map(|agent| [agent.ranks.as_slice(), &[agent.pid]].concat())
        .collect();
    assert_eq!(all.len(), 4);
    run.signal(Signal::KILL).unwrap();
    run.end().unwrap();
    let alive = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    let deadline = std::time::Instant::now() + std::time::Duration::from_mins(5);
    while all.iter().any(alive) {
        assert!(std::time::Instant::now() < deadline, "{all:?}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn job_without_data_fails_with_the_reason() {
    let mut job = job(2, 100);
    let empty = tempfile::tempdir().unwrap();
    let path = empty.path().display().to_string();
    job["spec"]["trainer"]["data"]["path"] = path.clone().into();
    let mut run = LocalRun::start(&job, &[]).unwrap();
    assert_eq!(run.end().unwrap().code(), Some(1));
    let output = run.output();
    assert!(
        output.contains("DataInvalid") && output.contains(&path),
        "{output}"
    );
}

#[test]
fn output_lists_the_processes_of_all_ranks() {
    let mut run = LocalRun::start(&job(2, 1_000_000), &[]).unwrap();
    run.wait_for("steps", |run| run.step() > 5).unwrap();
    let output = run.output();
    for rank in run.agents().iter().flat_map(|agent| &agent.ranks) {
        let processes = output.lines().find(|line| line.contains("Processes: "));
        assert!(processes.unwrap().contains(&rank.to_string()), "{output}");
    }
}

#[test]
fn second_run_in_a_used_directory_is_refused() {
    let mut run = LocalRun::start(&job(2, 1_000_000), &[]).unwrap();
    run.wait_for("steps", |run| run.step() > 5).unwrap();
    let refused = run.run_second().unwrap();
    assert!(!refused.status.success());
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(error.contains("another run (pid "), "{error}");
    assert!(run.agents().len() == 2, "the first run continues");
}
