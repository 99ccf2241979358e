//! What is left of a run when it, or a part of it, has ended: nothing.

use std::sync::atomic::{AtomicU32, Ordering};
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

/// A variable of all processes of a run, by whose value they are found.
const MARK: &str = "MARK_OF_RUN";

fn job(script: &str, mark: &str) -> Value {
    json!({
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "script"},
        "spec": {
            "workers": {"replicas": 1, "template": {"spec": {"containers": [
                {"name": "trainer", "image": "not-used:1", "command": ["bash", "-c", script],
                 "env": [{"name": MARK, "value": mark}]},
            ]}}},
            "elastic": {"mode": "Restart"},
        },
    })
}

/// A run, and the mark of its processes.
struct Marked {
    run: LocalRun,
    mark: String,
}

impl Marked {
    /// Waits until there are so many processes.
    fn start(script: &str, num_processes: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{MARK}={}-{number};", std::process::id());
        let value = mark.split_once('=').unwrap().1;
        let mut run = LocalRun::start(&job(script, value), &[]).unwrap();
        run.wait_for("all processes", |_| processes(&mark).len() >= num_processes)
            .unwrap();
        Self { run, mark }
    }

    fn wait_for_none(&self) {
        let deadline = Instant::now() + Duration::from_mins(5);
        while !processes(&self.mark).is_empty() {
            assert!(Instant::now() < deadline, "{:?}", processes(&self.mark));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// All processes of a run but the executor.
fn processes(mark: &str) -> Vec<u32> {
    let is_own = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(mark)
    };
    let pids = parents().into_iter().map(|(pid, _)| pid);
    pids.filter(is_own).collect()
}

/// Agent, script, the other session; and what they wait for.
fn start() -> Marked {
    Marked::start(STUBBORN, 4)
}

#[test]
fn a_second_interrupt_leaves_nothing_of_a_script_that_takes_its_time() {
    let Marked { mut run, mark } = start();
    run.signal(Signal::INT).unwrap();
    run.wait_for("word of it", |run| run.output().contains("again to kill"))
        .unwrap();
    run.signal(Signal::INT).unwrap();
    assert_eq!(run.end().unwrap().code(), Some(130), "{}", run.output());
    assert!(processes(&mark).is_empty());
}

#[test]
fn an_agent_that_is_killed_is_followed_by_another_when_nothing_of_it_is_left() {
    let Marked { mut run, mark } = start();
    let before = processes(&mark);
    assert!(send(run.agents()[0].pid, Signal::KILL));
    run.wait_for("another agent", |run| {
        let agents = run.agents();
        !agents.is_empty() && agents.iter().all(|it| !before.contains(&it.pid))
    })
    .unwrap();
    let after = processes(&mark);
    assert!(before.iter().all(|pid| !after.contains(pid)));
}

#[test]
fn a_script_and_its_sessions_end_after_an_executor_that_is_killed() {
    let mut marked = start();
    marked.run.signal(Signal::KILL).unwrap();
    marked.run.end().unwrap();
    marked.wait_for_none();
}

#[test]
fn a_terminal_that_is_gone_ends_the_run_as_an_interrupt_does() {
    let Marked { mut run, mark } = Marked::start("exec sleep 1000", 2);
    run.signal(Signal::HUP).unwrap();
    assert_eq!(run.end().unwrap().code(), Some(130), "{}", run.output());
    assert!(processes(&mark).is_empty());
}
