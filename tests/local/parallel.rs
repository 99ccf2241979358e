//! The built-in trainer with `trainer.parallel`: the processes of a worker are one replica, and any
//! number of replicas trains what one process does.

use roundhouse_tests::local::{LocalRun, job};
use rustix::process::Signal;
use serde_json::{Value, json};

const STEPS: u64 = 60;
/// Enough steps that training outlasts all faults.
const STEPS_WITH_FAULTS: u64 = 1_500;
/// Milliseconds added to each step until all faults are over.
const PAUSE_MILLIS: u64 = 50;
const PROCESSES: u32 = 2;
const REPLICAS: u32 = 2;

/// A job whose weights are the same bit for bit for every number of ranks.
fn in_slices(workers: u32, steps: u64, optimizer: &str) -> Value {
    let mut job = job(workers, steps);
    let trainer = &mut job["spec"]["trainer"];
    trainer["slices"] = 8.into();
    trainer["optimizer"] = json!({"name": optimizer, "learningRate": 0.01, "weightDecay": 0.1});
    trainer["optimizer"]["maxGradNorm"] = json!(1.0);
    job["spec"]["failurePolicy"] = json!({"backoffLimit": 100});
    job
}

/// The same job with a replica per worker.
fn in_shards(workers: u32, steps: u64, optimizer: &str) -> Value {
    let mut job = in_slices(workers, steps, optimizer);
    job["spec"]["workers"]["procsPerWorker"] = PROCESSES.into();
    job["spec"]["trainer"]["parallel"] = json!({"shard": "Zero1"});
    job["spec"]["checkpoint"] = json!({"volume": {"hostPath": {"path": "/srv"}}, "everySteps": 10});
    job
}

fn completed(mut run: LocalRun) -> LocalRun {
    assert!(run.end().unwrap().success(), "{}", run.output());
    run
}

fn assert_equal_bits(one: &LocalRun, other: &LocalRun, what: &str) {
    let (one, other) = (one.weights().unwrap(), other.weights().unwrap());
    assert!(
        one == other,
        "{what}: the weights are not equal bit for bit"
    );
}

#[test]
fn shards_of_an_optimizer_train_what_one_process_does() {
    for optimizer in ["sgd", "adamw"] {
        let alone = LocalRun::start(&in_slices(1, STEPS, optimizer), &[]).unwrap();
        let alone = completed(alone);
        for replicas in [1, 2] {
            let run = LocalRun::start(&in_shards(replicas, STEPS, optimizer), &[]).unwrap();
            let run = completed(run);
            assert_equal_bits(&alone, &run, &format!("{optimizer}, {replicas} replicas"));
            let audit = run.audit().unwrap();
            assert!(audit.contains("proven"), "{audit}");
        }
    }
}

/// Waits until all processes of all replicas train in a generation after `before`, which it
/// returns.
fn all_train(run: &mut LocalRun, before: u64) -> u64 {
    let mut newest = 0;
    run.wait_for("all replicas in a later generation", |run| {
        let agents = run.agents();
        newest = agents.iter().map(|it| it.generation).max().unwrap_or(0);
        let members = agents.iter().filter(|it| it.generation == newest);
        let ranks: usize = members.map(|it| it.ranks.len()).sum();
        newest > before && ranks == (REPLICAS * PROCESSES) as usize
    })
    .unwrap();
    newest
}

/// The other replica trains on, and the killed one receives the state again.
#[test]
fn killed_process_of_a_replica_costs_no_step_and_no_bit() {
    let steps = STEPS_WITH_FAULTS;
    let alone = completed(LocalRun::start(&in_slices(1, steps, "adamw"), &[]).unwrap());
    let mut run = LocalRun::start(&in_shards(REPLICAS, steps, "adamw"), &[]).unwrap();
    run.slow_down(PAUSE_MILLIS).unwrap();
    let mut generation = all_train(&mut run, 0);
    for point in ["Forward", "Backward", "Agree", "Column", "Update", "Commit"] {
        for rank in 0..REPLICAS * PROCESSES {
            let step = run.step();
            run.wait_for("a step", |run| run.step() > step).unwrap();
            run.kill_at(rank, point).unwrap();
            run.wait_for("the kill", LocalRun::has_killed).unwrap();
            generation = all_train(&mut run, generation);
        }
    }
    assert!(run.step() < steps, "all faults must find the job training");
    run.slow_down(0).unwrap();
    let run = completed(run);
    let audit = run.audit().unwrap();
    assert!(!audit.contains("again"), "{audit}\n{}", run.output());
    assert_equal_bits(&alone, &run, "after kills");
}

/// A checkpoint has whole tensors, so a job in shards continues without them, and with another
/// number of processes.
#[test]
fn checkpoint_of_shards_continues_with_any_number() {
    let alone = completed(LocalRun::start(&in_slices(1, STEPS, "adamw"), &[]).unwrap());
    let mut run = LocalRun::start(&in_shards(2, STEPS, "adamw"), &[]).unwrap();
    run.slow_down(PAUSE_MILLIS).unwrap();
    for (step, shard, processes) in [(5, "Zero1", 3), (15, "", 1), (25, "Zero1", 2)] {
        run.wait_for("steps", |run| run.step() > step).unwrap();
        run.signal(Signal::INT).unwrap();
        assert_eq!(run.end().unwrap().code(), Some(130), "{}", run.output());
        run.edit(|spec| {
            spec["workers"]["procsPerWorker"] = processes.into();
            spec["trainer"]["parallel"] = match shard {
                "" => json!({}),
                shard => json!({"shard": shard}),
            };
        })
        .unwrap();
        run.restart(&[]).unwrap();
    }
    run.slow_down(0).unwrap();
    let run = completed(run);
    let audit = run.audit().unwrap();
    assert!(!audit.contains("again"), "{audit}");
    assert_equal_bits(&alone, &run, "after changes of the mesh");
}
