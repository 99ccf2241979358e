//! The built-in trainer with `trainer.parallel`: the processes of a worker are one replica, and any
//! number of replicas trains what one process does.

use roundhouse_tests::local::{LocalRun, Program, job};
use rustix::process::Signal;
use serde_json::{Value, json};

mod experts;
mod jobs;
mod pipeline;
mod tensors;

const STEPS: u64 = 60;
/// Enough steps for the kills of all ranks at a point.
const STEPS_PER_KILL: u64 = 250;
/// Milliseconds added to each step until all faults are over.
const PAUSE_MILLIS: u64 = 50;
const PROCESSES: u32 = 2;
const REPLICAS: u32 = 2;

/// A job whose weights are the same bit for bit for every number of ranks. `clips`: with clipping,
/// by a norm that several processes may sum in another order than one.
fn in_slices(workers: u32, steps: u64, optimizer: &str, clips: bool) -> Value {
    let mut job = job(workers, steps);
    let trainer = &mut job["spec"]["trainer"];
    trainer["slices"] = 8.into();
    trainer["optimizer"] = json!({"name": optimizer, "learningRate": 0.01, "weightDecay": 0.1});
    if clips {
        trainer["optimizer"]["maxGradNorm"] = json!(1.0);
    }
    job["spec"]["failurePolicy"] = json!({"backoffLimit": 100});
    job
}

/// The same job with a replica per worker.
fn in_shards(workers: u32, steps: u64, optimizer: &str, shard: &str) -> Value {
    let mut job = in_slices(workers, steps, optimizer, shard == "Zero1");
    job["spec"]["workers"]["procsPerWorker"] = PROCESSES.into();
    job["spec"]["trainer"]["parallel"] = json!({"shard": shard});
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
fn shards_train_what_one_process_does() {
    for (shard, optimizer) in [
        ("Zero1", "sgd"),
        ("Zero1", "adamw"),
        ("Zero2", "adamw"),
        ("Zero3", "adamw"),
    ] {
        let alone = in_slices(1, STEPS, optimizer, shard == "Zero1");
        let alone = completed(LocalRun::start(&alone, &[]).unwrap());
        for replicas in [1, 2] {
            let run = LocalRun::start(&in_shards(replicas, STEPS, optimizer, shard), &[]).unwrap();
            let run = completed(run);
            let what = format!("{shard}, {optimizer}, {replicas} replicas");
            assert_equal_bits(&alone, &run, &what);
            let audit = run.audit().unwrap();
            assert!(audit.contains("proven"), "{audit}");
        }
    }
}

/// A job of a language model: passes and slices are uneven.
fn of_language_model(mut job: Value, model: &Value, activations: &str) -> Value {
    let trainer = &mut job["spec"]["trainer"];
    trainer["model"] = model.clone();
    let tokens = json!({"context": 16});
    trainer["data"] = json!({"format": "tokens", "train": "train.bin", "validation": "val.bin", "tokens": tokens});
    trainer["slices"] = 5.into();
    trainer["globalBatchSize"] = 13.into();
    trainer["microBatchSize"] = 2.into();
    trainer["activationCheckpointing"] = activations.into();
    job
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

/// Kills each process at each of these points of a step, before the last one of `steps`.
fn kill_all_ranks(run: &mut LocalRun, points: &[&str], steps: u64) {
    run.slow_down(PAUSE_MILLIS).unwrap();
    let mut generation = all_train(run, 0);
    for point in points {
        for rank in 0..REPLICAS * PROCESSES {
            let step = run.step();
            run.wait_for("a step", |run| run.step() > step).unwrap();
            run.kill_at(rank, point).unwrap();
            run.wait_for("the kill", LocalRun::has_killed).unwrap();
            generation = all_train(run, generation);
        }
    }
    assert!(run.step() < steps, "all faults must find the job training");
}

/// Waits for the end of a run that repeats no step.
fn completed_without_repeats(run: LocalRun) -> LocalRun {
    run.slow_down(0).unwrap();
    let run = completed(run);
    let audit = run.audit().unwrap();
    assert!(!audit.contains("again"), "{audit}\n{}", run.output());
    run
}

/// After each of these steps, stops the run and continues with this number of processes per worker
/// and this division.
fn change_mesh(run: &mut LocalRun, changes: &[(u64, u32, Value)]) {
    run.slow_down(PAUSE_MILLIS).unwrap();
    for (step, processes, parallel) in changes {
        run.wait_for("steps", |run| run.step() > *step).unwrap();
        run.signal(Signal::INT).unwrap();
        assert_eq!(run.end().unwrap().code(), Some(130), "{}", run.output());
        run.edit(|spec| {
            spec["workers"]["procsPerWorker"] = (*processes).into();
            spec["trainer"]["parallel"] = parallel.clone();
        })
        .unwrap();
        run.restart(&[]).unwrap();
    }
}

/// The stage of `ZeRO`, and the points of a step at which a process is killed. `Zero1` and `Zero2`
/// differ from `Zero3` only there.
const KILLS: [(&str, &[&str]); 3] = [
    ("Zero1", &["Column", "Update"]),
    ("Zero2", &["Update"]),
    (
        "Zero3",
        &["Forward", "Backward", "Sum", "Agree", "Column", "Commit"],
    ),
];

/// The other replica trains on, and the killed one receives the state again.
#[test]
fn killed_process_of_a_replica_costs_no_step_and_no_bit() {
    for (shard, points) in KILLS {
        let steps = STEPS_PER_KILL * points.len() as u64;
        let alone = in_slices(1, steps, "adamw", shard == "Zero1");
        let alone = completed(LocalRun::start(&alone, &[]).unwrap());
        let mut run = LocalRun::start(&in_shards(REPLICAS, steps, "adamw", shard), &[]).unwrap();
        kill_all_ranks(&mut run, points, steps);
        let run = completed_without_repeats(run);
        assert_equal_bits(&alone, &run, &format!("{shard} after kills"));
    }
}

/// A process that stops within a pass holds up its own replica, and no other one.
#[test]
fn stopped_process_of_a_replica_does_not_end_another_replica() {
    let steps = 300;
    let alone = in_slices(1, steps, "adamw", false);
    let alone = completed(LocalRun::start(&alone, &[]).unwrap());
    let job = in_shards(REPLICAS, steps, "adamw", "Zero3");
    let variables = [
        ("ROUNDHOUSE_COLLECTIVE_TIMEOUT_SECONDS", "5"),
        ("ROUNDHOUSE_FAULT_FREEZE", "3:40:Backward"),
    ];
    let mut run = LocalRun::start(&job, &variables).unwrap();
    run.slow_down(PAUSE_MILLIS).unwrap();
    let generation = all_train(&mut run, 0);
    let before: Vec<Vec<u32>> = run.agents().into_iter().map(|it| it.ranks).collect();
    all_train(&mut run, generation);
    let after: Vec<Vec<u32>> = run.agents().into_iter().map(|it| it.ranks).collect();
    let stayed = before.iter().filter(|ranks| after.contains(ranks));
    assert_eq!(stayed.count(), 1, "{before:?}, {after:?}\n{}", run.output());
    let run = completed_without_repeats(run);
    assert_equal_bits(&alone, &run, "after a stop");
}

/// A collective before a step succeeds in a process and fails in its sibling: the last one of a
/// generation that forms, or the comparison of states before a checkpoint. The replica leaves the
/// generation, and no process restarts.
#[test]
fn failed_collective_between_steps_restarts_no_process() {
    let alone = in_slices(1, STEPS, "adamw", false);
    let alone = completed(LocalRun::start(&alone, &[]).unwrap());
    let job = in_shards(REPLICAS, STEPS, "adamw", "Zero3");
    for fault in ["1:1:Formed", "3:20:Compare"] {
        let run = LocalRun::start(&job, &[("ROUNDHOUSE_FAULT_LOSE", fault)]).unwrap();
        let run = completed(run);
        let output = run.output();
        assert!(output.contains("generation 2"), "{output}");
        let started = output.matches("Processes: ");
        assert_eq!(started.count(), 1, "{output}");
        let audit = run.audit().unwrap();
        assert!(!audit.contains("again"), "{audit}\n{output}");
        assert_equal_bits(&alone, &run, fault);
    }
}

/// A tied embedding is used twice in a pass, and blocks are computed again.
#[test]
fn divided_language_models_train_what_one_process_does() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::on_tokens(directory.path()).unwrap();
    let sizes = json!({"layers": 3, "heads": 2, "width": 32, "vocabulary": 64});
    let with = |fields: Value| {
        let mut model = sizes.clone();
        model
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        model
    };
    for (model, activations) in [
        (
            with(json!({"name": "gpt2", "context": 16, "dropout": 0.1})),
            "Blocks",
        ),
        (
            with(json!({"name": "switch", "context": 16, "numExperts": 3})),
            "None",
        ),
        (
            with(json!({"name": "llama", "tieEmbeddings": false})),
            "None",
        ),
        (with(json!({"name": "bert", "context": 16})), "Blocks"),
    ] {
        let completed = |workers, shard| {
            let job = match shard {
                None => in_slices(workers, 12, "adamw", false),
                Some(shard) => in_shards(workers, 12, "adamw", shard),
            };
            let job = of_language_model(job, &model, activations);
            completed(LocalRun::start_program(program.clone(), &job, &[]).unwrap())
        };
        let alone = completed(1, None);
        for (replicas, shard) in [(1, "Zero2"), (2, "Zero3")] {
            let run = completed(replicas, Some(shard));
            assert_equal_bits(&alone, &run, &format!("{model}, {replicas} with {shard}"));
        }
    }
}

/// Running statistics are not divided, and neither is the stem, which is in no segment.
#[test]
fn divided_residual_networks_train_what_one_process_does() {
    let completed = |workers, shard| {
        let mut job = match shard {
            None => in_slices(workers, 4, "sgd", false),
            Some(shard) => in_shards(workers, 4, "sgd", shard),
        };
        let trainer = &mut job["spec"]["trainer"];
        trainer["model"] = json!({"name": "resnet18", "stem": "cifar", "ghostBatch": 2});
        trainer["slices"] = 4.into();
        trainer["globalBatchSize"] = 8.into();
        trainer["eval"] = json!({"everySteps": 1_000});
        completed(LocalRun::start(&job, &[]).unwrap())
    };
    let run = completed(2, Some("Zero3"));
    assert_equal_bits(&completed(1, None), &run, "two with Zero3");
}

/// A checkpoint has whole tensors, so a job in shards continues without them, and with another
/// number of processes.
#[test]
fn checkpoint_of_shards_continues_with_any_number() {
    let alone = in_slices(1, STEPS, "adamw", false);
    let alone = completed(LocalRun::start(&alone, &[]).unwrap());
    let mut run = LocalRun::start(&in_shards(2, STEPS, "adamw", "Zero3"), &[]).unwrap();
    let changes = [
        (5, 3, json!({"shard": "Zero1"})),
        (15, 1, json!({})),
        (25, 3, json!({"shard": "Zero3"})),
        (35, 2, json!({"shard": "Zero2"})),
    ];
    change_mesh(&mut run, &changes);
    let run = completed_without_repeats(run);
    assert_equal_bits(&alone, &run, "after changes of the mesh");
}
