//! Workers whose processes share one copy of the model, as a replica that is lost as a whole. They
//! need `ROUNDHOUSE_PYTHON`, an interpreter with PyTorch and the package `roundhouse`.

use roundhouse_tests::local::{Agent, LocalRun, Program};
use roundhouse_tests::processes::send;
use roundhouse_tests::pytorch::Script;
use roundhouse_tests::weights::difference;
use rustix::process::Signal;
use serde_json::json;

/// Enough steps that training outlasts all faults.
const STEPS: u64 = 120;
const STEPS_PER_CHECKPOINT: u64 = 10;
/// Milliseconds added to each step until all faults are over.
const PAUSE_MILLIS: u64 = 200;
const REPLICAS: usize = 2;
const PROCESSES: usize = 2;
/// The largest allowed difference in 64 bits, as a fraction of the largest weight of a tensor.
const ROUNDING: f32 = 1e-12;

/// Waits until both replicas train in a generation after `before` and a spare waits. Returns the
/// generation, its members, and the spare.
fn settled(run: &mut LocalRun, before: u64) -> (u64, Vec<Agent>, Agent) {
    let mut found = None;
    run.wait_for("both replicas and a spare", |run| {
        let agents = run.agents();
        let newest = agents.iter().map(|agent| agent.generation).max();
        let newest = newest.unwrap_or(0);
        let is_whole = |it: &Agent| it.is_prepared && it.ranks.len() == PROCESSES;
        let (members, mut others): (Vec<Agent>, Vec<Agent>) = agents
            .into_iter()
            .filter(is_whole)
            .partition(|agent| agent.generation == newest);
        if newest > before && members.len() == REPLICAS && others.len() == 1 {
            found = others.pop().map(|spare| (newest, members, spare));
        }
        found.is_some()
    })
    .unwrap();
    found.unwrap()
}

/// The names of the complete checkpoints.
fn checkpoints(run: &LocalRun) -> Vec<String> {
    let entries = std::fs::read_dir(run.dir().join("state/checkpoints"));
    let names = entries.into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut complete: Vec<String> = names.filter(|name| !name.contains("partial")).collect();
    complete.sort();
    complete
}

/// A process dies when half of its part of a checkpoint is written, a spare replica takes the place
/// of its replica, and then all replicas die at once.
#[test]
#[ignore = "needs PyTorch: tests/run/python-local"]
fn sharded_job_survives_torn_save_takeover_and_total_loss() {
    let script = Script::sharded(STEPS).unwrap();
    let mut wanted = script.job(2);
    wanted["spec"]["workers"]["spares"] = 1.into();
    wanted["spec"]["failurePolicy"] = json!({"backoffLimit": 100});
    wanted["spec"]["checkpoint"]["everySteps"] = STEPS_PER_CHECKPOINT.into();
    let program = Program::built_in().unwrap();
    let mut run = LocalRun::start_program(program, &wanted, &[]).unwrap();
    run.slow_down(PAUSE_MILLIS).unwrap();
    let (first, before, spare) = settled(&mut run, 0);

    run.kill_at(1, "Checkpoint").unwrap();
    run.wait_for("the kill", LocalRun::has_killed).unwrap();
    let torn = checkpoints(&run);
    let (second, members, _) = settled(&mut run, first);
    let ranks_of =
        |agents: &[Agent]| -> Vec<_> { agents.iter().map(|it| it.ranks.clone()).collect() };
    let (earlier, now) = (ranks_of(&before), ranks_of(&members));
    let stayed = now.iter().filter(|ranks| earlier.contains(ranks)).count();
    assert_eq!(stayed, 1, "{members:?} after {before:?}");
    assert!(now.contains(&spare.ranks), "{members:?} without {spare:?}");

    run.wait_for("a complete checkpoint", |run| checkpoints(run) != torn)
        .unwrap();
    let ranks = run.agents().into_iter().flat_map(|agent| agent.ranks);
    let killed = ranks.filter(|rank| send(*rank, Signal::KILL)).count();
    assert_eq!(killed, (REPLICAS + 1) * PROCESSES);
    let saved = checkpoints(&run).pop().unwrap();
    settled(&mut run, second);

    assert!(run.step() < STEPS, "all faults must find the job training");
    run.slow_down(0).unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
    let audit = run.audit().unwrap();
    println!("{audit}");
    // Steps are lost only when all replicas die, and only those since the newest checkpoint.
    let mut lost = audit.lines().filter(|it| it.contains("again: steps"));
    let source = format!("continued from checkpoint {saved}");
    assert!(
        lost.next().is_none_or(|line| line.ends_with(&source)),
        "{source}: {audit}"
    );
    assert_eq!(lost.next(), None);
    assert!(
        run.output().contains("loaded checkpoint"),
        "{}",
        run.output()
    );
    let weights = run.result(script.weights).unwrap();
    let apart = difference(&script.weights_alone().unwrap(), &weights).unwrap();
    println!("weights differ by {apart:e}");
    assert!(apart <= ROUNDING, "{apart:e}");
}

/// The only replica dies twice, each time with another one of its processes first.
#[test]
#[ignore = "needs PyTorch: tests/run/python-local"]
fn lone_sharded_script_continues_from_its_copies() {
    let script = Script::sharded(STEPS / 2).unwrap();
    let mut wanted = script.job(1);
    wanted["spec"]["failurePolicy"] = json!({"backoffLimit": 100});
    wanted["spec"]["checkpoint"]["everySteps"] = 1_000_000.into();
    wanted["spec"]["checkpoint"]["local"] = json!({"everySteps": 5, "sizeLimit": "1Gi"});
    let program = Program::built_in().unwrap();
    let mut run = LocalRun::start_program(program, &wanted, &[]).unwrap();
    run.slow_down(PAUSE_MILLIS / 2).unwrap();
    for local_rank in 0..PROCESSES {
        let step = run.step();
        run.wait_for("a copy", |run| run.step() > step + 10)
            .unwrap();
        let ranks = run.agents().into_iter().flat_map(|agent| agent.ranks);
        let ranks: Vec<u32> = ranks.collect();
        let generation = run.generation();
        assert!(send(ranks[local_rank], Signal::KILL));
        run.wait_for("a new generation", |run| run.generation() > generation)
            .unwrap();
    }
    run.slow_down(0).unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
    let (_, lines) = run.record().unwrap();
    let repeated = lines.last().unwrap()["repeatedSteps"].as_u64();
    assert!(repeated.unwrap_or(0) <= 20, "{repeated:?}");
    let audit = run.audit().unwrap();
    assert!(audit.contains("proven"), "{audit}");
    let weights = run.result(script.weights).unwrap();
    let apart = difference(&script.weights_alone().unwrap(), &weights).unwrap();
    assert!(apart <= ROUNDING, "{apart:e}\n{}", run.output());
}
