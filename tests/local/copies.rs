//! `checkpoint.local`: a job without another holder of its state loses its processes, and continues
//! from the copies that its workers keep.

use roundhouse_tests::local::{LocalRun, job};
use serde_json::{Value, json};

const STEPS: u64 = 300;
/// Number of steps between two copies.
const EVERY: u64 = 5;
/// Milliseconds added to each step until all faults are over.
const PAUSE_MILLIS: u64 = 30;

/// A job of one worker, whose processes have a shard of the state each if they are several. It
/// writes no checkpoint before its end.
fn lone(processes: u32) -> Value {
    let mut job = job(1, STEPS);
    let spec = &mut job["spec"];
    spec["workers"]["procsPerWorker"] = processes.into();
    spec["failurePolicy"] = json!({"backoffLimit": 100});
    spec["checkpoint"] = json!({
        "volume": {"hostPath": {"path": "/srv"}},
        "everySteps": 1_000_000,
        "local": {"everySteps": EVERY, "sizeLimit": "1Gi"},
    });
    let trainer = &mut spec["trainer"];
    trainer["slices"] = 8.into();
    trainer["optimizer"] = json!({"name": "adamw", "learningRate": 0.01});
    if processes > 1 {
        trainer["parallel"] = json!({"shard": "Zero3"});
    }
    job
}

fn completed(mut run: LocalRun) -> LocalRun {
    assert!(run.end().unwrap().success(), "{}", run.output());
    run
}

/// Kills a process at each of these points, after steps beyond a copy.
fn kill_at(run: &mut LocalRun, kills: &[(u32, &str)]) {
    run.slow_down(PAUSE_MILLIS).unwrap();
    for (rank, point) in kills {
        let (step, generation) = (run.step(), run.generation());
        run.wait_for("a copy", |run| run.step() > step + 2 * EVERY)
            .unwrap();
        run.kill_at(*rank, point).unwrap();
        run.wait_for("the kill", LocalRun::has_killed).unwrap();
        run.wait_for("a new generation", |run| run.generation() > generation)
            .unwrap();
    }
    run.slow_down(0).unwrap();
}

/// The number of committed steps that were repeated.
fn repeated(run: &LocalRun) -> u64 {
    let (_, lines) = run.record().unwrap();
    let last = lines.last().unwrap();
    last["repeatedSteps"].as_u64().unwrap_or(0)
}

#[test]
fn lone_worker_continues_from_its_copies() {
    let mut alone = lone(1);
    alone["spec"]["checkpoint"] = Value::Null;
    let alone = completed(LocalRun::start(&alone, &[]).unwrap());
    let kills = [(0, "Forward"), (0, "Update"), (0, "Commit")];
    let kills_of_shards = [
        (1, "Backward"),
        (0, "CopyBegun"),
        (1, "CopyWritten"),
        (0, "Column"),
    ];
    for (processes, kills) in [(1, &kills[..]), (2, &kills_of_shards)] {
        let mut run = LocalRun::start(&lone(processes), &[]).unwrap();
        kill_at(&mut run, kills);
        let run = completed(run);
        let what = format!("{processes} processes\n{}", run.output());
        assert!(alone.weights().unwrap() == run.weights().unwrap(), "{what}");
        let audit = run.audit().unwrap();
        assert!(audit.contains("proven"), "{audit}");
        // At most the steps since the last copy, and those while it was written.
        let most = kills.len() as u64 * (2 * EVERY);
        assert!(
            repeated(&run) <= most,
            "{} of {most}: {audit}\n{what}",
            repeated(&run)
        );
    }
}

/// The job grows while the container of its only worker restarts.
#[test]
fn new_worker_does_not_begin_before_the_one_with_a_copy() {
    let mut wanted = lone(1);
    wanted["spec"]["workers"]["minReplicas"] = 1.into();
    wanted["spec"]["workers"]["maxReplicas"] = 2.into();
    let mut run = LocalRun::start(&wanted, &[]).unwrap();
    run.slow_down(PAUSE_MILLIS).unwrap();
    run.wait_for("a copy", |run| run.step() > 3 * EVERY)
        .unwrap();
    run.kill_at(0, "Commit").unwrap();
    run.wait_for("the kill", LocalRun::has_killed).unwrap();
    run.scale(2).unwrap();
    let generation = run.generation();
    run.wait_for("a new generation", |run| run.generation() > generation)
        .unwrap();
    run.slow_down(0).unwrap();
    let run = completed(run);
    let audit = run.audit().unwrap();
    assert!(audit.contains("proven"), "{audit}");
    assert!(repeated(&run) <= 2 * EVERY, "{audit}\n{}", run.output());
}
