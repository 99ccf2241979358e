//! Scripts with PyTorch that join. The tests kill each rank at each point of a step. They need
//! `ROUNDHOUSE_PYTHON`, an interpreter with PyTorch and the package `roundhouse`.

use anyhow::Context;
use roundhouse_contract::{Phase, RankStatus};
use roundhouse_tests::local::{LocalRun, Program};
use roundhouse_tests::pytorch::Script;
use roundhouse_tests::weights::difference;
use serde_json::json;

/// Enough steps that training outlasts all kills.
const STEPS: u64 = 800;
const POINTS: [&str; 5] = ["Forward", "Backward", "Agree", "Update", "Commit"];
/// Milliseconds added to each step until a rank is killed.
const PAUSE_MILLIS: u64 = 20;
/// Milliseconds added to each step until the killed rank's successor trains. It imports PyTorch for
/// seconds.
const SUCCESSOR_PAUSE_MILLIS: u64 = 500;
/// The largest allowed difference, as a fraction of the largest weight of a tensor. The script
/// computes with 64 bits and saves 32 bits, so the order of sums over two or three ranks changes a
/// saved weight by at most one unit in the last place.
const TOLERANCE: f32 = f32::EPSILON;

/// The processes of the workers that train in the newest generation, if there are `workers` of
/// them.
fn trains(run: &LocalRun, workers: u32) -> Option<Vec<u32>> {
    let newest = run.generation();
    let is_in = |it: &RankStatus| it.generation == newest && it.phase == Phase::Training;
    let num_in = run.statuses().iter().filter(|it| is_in(it)).count();
    let ranks = run.agents().into_iter().flat_map(|agent| agent.ranks);
    let ranks: Vec<u32> = ranks.collect();
    let workers = workers as usize;
    (num_in == workers && ranks.len() == workers).then_some(ranks)
}

/// Waits until all workers train in a generation after `before`, and returns their processes.
fn all_train(run: &mut LocalRun, workers: u32, before: u64) -> anyhow::Result<Vec<u32>> {
    let mut found = None;
    run.wait_for("all workers to train", |run| {
        found = trains(run, workers).filter(|_| run.generation() > before);
        found.is_some()
    })?;
    found.context("not all workers train")
}

fn each_rank_is_killed_at_each_point(workers: u32) -> anyhow::Result<()> {
    let program = Program::built_in()?;
    let mut script = Script::whole(STEPS)?;
    script.variables.push(("DOUBLE", "1".to_owned()));
    let mut undisturbed = LocalRun::start_program(program.clone(), &script.job(1), &[])?;
    anyhow::ensure!(undisturbed.end()?.success(), "{}", undisturbed.output());

    let mut wanted = script.job(workers);
    wanted["spec"]["failurePolicy"] = json!({"backoffLimit": 100});
    let mut run = LocalRun::start_program(program, &wanted, &[])?;
    run.slow_down(PAUSE_MILLIS)?;
    let mut ranks = all_train(&mut run, workers, 0)?;
    for rank in 0..workers {
        for point in POINTS {
            let generation = run.generation();
            run.kill_at(rank, point)?;
            run.wait_for("the kill", LocalRun::has_killed)?;
            run.slow_down(SUCCESSOR_PAUSE_MILLIS)?;
            let before = ranks;
            ranks = all_train(&mut run, workers, generation)?;
            let stayed = ranks.iter().filter(|pid| before.contains(pid)).count();
            assert_eq!(stayed, workers as usize - 1, "rank {rank}, {point}");
            run.slow_down(PAUSE_MILLIS)?;
        }
    }
    println!("{} kills until step {}", workers * 5, run.step());
    assert!(run.step() < STEPS);
    run.slow_down(0)?;
    assert!(run.end()?.success(), "{}", run.output());
    println!("{}", run.audit()?);
    let apart = difference(
        &undisturbed.result(script.weights)?,
        &run.result(script.weights)?,
    )?;
    println!("weights differ by {apart:e}");
    assert!(apart <= TOLERANCE, "{apart:e}");
    Ok(())
}

#[test]
#[ignore = "needs PyTorch: tests/run/python-local"]
fn kills_of_two_ranks_of_a_script_leave_weights_equal() {
    each_rank_is_killed_at_each_point(2).unwrap();
}

#[test]
#[ignore = "needs PyTorch: tests/run/python-local"]
fn kills_of_three_ranks_of_a_script_leave_weights_equal() {
    each_rank_is_killed_at_each_point(3).unwrap();
}
