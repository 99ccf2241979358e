//! No process remains after a run, an agent or the executor has ended.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use roundhouse_tests::local::LocalRun;
use roundhouse_tests::processes::{parents, send};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A script that ignores SIGTERM and runs until it is killed, with a child in another session.
const STUBBORN: &str = r"
    trap : TERM
    setsid bash -c 'trap : TERM; while :; do sleep 0.02; done' &
    while :; do sleep 0.02; done";

/// An environment variable of all processes of a run. Its value identifies them.
const RUN_ID: &str = "TEST_RUN_ID";

fn job(script: &str, run_id: &str) -> Value {
    json!({
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "script"},
        "spec": {
            "workers": {"replicas": 1, "template": {"spec": {"containers": [
                {"name": "trainer", "image": "not-used:1", "command": ["bash", "-c", script],
                 "env": [{"name": RUN_ID, "value": run_id}]},
            ]}}},
            "elastic": {"mode": "Restart"},
        },
    })
}

/// A run, and the variable `NAME=value` that its processes have.
struct TaggedRun {
    run: LocalRun,
    tag: String,
}

impl TaggedRun {
    /// Starts a run and waits until it has `num_processes` processes.
    fn start(script: &str, num_processes: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let tag = format!("{RUN_ID}={}-{number};", std::process::id());
        let value = tag.split_once('=').unwrap().1;
        let mut run = LocalRun::start(&job(script, value), &[]).unwrap();
        run.wait_for("all processes", |_| processes(&tag).len() >= num_processes)
            .unwrap();
        Self { run, tag }
    }

    fn wait_for_none(&self) {
        let deadline = Instant::now() + Duration::from_mins(5);
        while !processes(&self.tag).is_empty() {
            assert!(Instant::now() < deadline, "{:?}", processes(&self.tag));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The process ids of a run's processes, without the executor.
fn processes(tag: &str) -> Vec<u32> {
    let is_own = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(tag)
    };
    let pids = parents().into_iter().map(|(pid, _)| pid);
    pids.filter(is_own).collect()
}

/// Starts the stubborn script: its agent, its two shells and one `sleep` are four processes.
fn start() -> TaggedRun {
    TaggedRun::start(STUBBORN, 4)
}

#[test]
fn second_interrupt_kills_all_processes_of_a_script() {
    let TaggedRun { mut run, tag } = start();
    run.signal(Signal::INT).unwrap();
    run.wait_for("the advice to interrupt again", |run| {
        run.output().contains("again to kill")
    })
    .unwrap();
    run.signal(Signal::INT).unwrap();
    assert_eq!(run.end().unwrap().code(), Some(130), "{}", run.output());
    assert!(processes(&tag).is_empty());
}

#[test]
fn killed_agent_is_replaced_after_its_processes_end() {
    let TaggedRun { mut run, tag } = start();
    let before = processes(&tag);
    assert!(send(run.agents()[0].pid, Signal::KILL));
    run.wait_for("another agent", |run| {
        let agents = run.agents();
        !agents.is_empty() && agents.iter().all(|it| !before.contains(&it.pid))
    })
    .unwrap();
    let after = processes(&tag);
    assert!(before.iter().all(|pid| !after.contains(pid)));
}

#[test]
fn killed_executor_ends_the_script_and_its_sessions() {
    let mut tagged = start();
    tagged.run.signal(Signal::KILL).unwrap();
    tagged.run.end().unwrap();
    tagged.wait_for_none();
}

#[test]
fn closed_terminal_ends_the_run_like_an_interrupt() {
    let TaggedRun { mut run, tag } = TaggedRun::start("exec sleep 1000", 2);
    run.signal(Signal::HUP).unwrap();
    assert_eq!(run.end().unwrap().code(), Some(130), "{}", run.output());
    assert!(processes(&tag).is_empty());
}
