//! What is left of a run when it, or a part of it, has ended: nothing.

use std::time::{Duration, Instant};

use roundhouse_tests::local::LocalRun;
use roundhouse_tests::processes::{parents, send};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A script that does not end on SIGTERM, as long as it lives, and a process of it in a session of its own.
const STUBBORN: &str = r"
    trap : TERM
    setsid bash -c 'trap : TERM; while :; do sleep 0.02; done' &
    while :; do sleep 0.02; done";

fn job(script: &str) -> Value {
    json!({
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "script"},
        "spec": {
            "workers": {"replicas": 1, "template": {"spec": {"containers": [
                {"name": "trainer", "image": "not-used:1", "command": ["bash", "-c", script]},
            ]}}},
            "elastic": {"mode": "Restart"},
        },
    })
}

/// All processes of a run but the executor, by the directory in their environment.
fn processes(run: &LocalRun) -> Vec<u32> {
    let directory = run.dir().display().to_string();
    let is_own = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&directory)
    };
    let pids = parents().into_iter().map(|(pid, _)| pid);
    pids.filter(is_own).collect()
}

fn start() -> LocalRun {
    let mut run = LocalRun::start(&job(STUBBORN), &[]).unwrap();
    // Agent, script, the other session; and what they wait for.
    run.wait_for("all processes", |run| processes(run).len() >= 4)
        .unwrap();
    run
}

fn wait_for_none(run: &LocalRun) {
    let deadline = Instant::now() + Duration::from_mins(5);
    while !processes(run).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", processes(run));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_second_interrupt_leaves_nothing_of_a_script_that_takes_its_time() {
    let mut run = start();
    run.signal(Signal::INT).unwrap();
    run.wait_for("word of it", |run| run.output().contains("again to kill"))
        .unwrap();
    run.signal(Signal::INT).unwrap();
    assert_eq!(run.end().unwrap().code(), Some(130), "{}", run.output());
    assert!(processes(&run).is_empty());
}

#[test]
fn an_agent_that_is_killed_is_followed_by_another_when_nothing_of_it_is_left() {
    let mut run = start();
    let before = processes(&run);
    assert!(send(run.agents()[0].pid, Signal::KILL));
    run.wait_for("another agent", |run| {
        let agents = run.agents();
        !agents.is_empty() && agents.iter().all(|it| !before.contains(&it.pid))
    })
    .unwrap();
    let after = processes(&run);
    assert!(before.iter().all(|pid| !after.contains(pid)));
}

#[test]
fn a_script_and_its_sessions_end_after_an_executor_that_is_killed() {
    let mut run = start();
    run.signal(Signal::KILL).unwrap();
    run.end().unwrap();
    wait_for_none(&run);
}

#[test]
fn a_terminal_that_is_gone_ends_the_run_as_an_interrupt_does() {
    let mut run = LocalRun::start(&job("exec sleep 1000"), &[]).unwrap();
    run.wait_for("the script", |run| processes(run).len() >= 2)
        .unwrap();
    run.signal(Signal::HUP).unwrap();
    assert_eq!(run.end().unwrap().code(), Some(130), "{}", run.output());
    assert!(processes(&run).is_empty());
}
