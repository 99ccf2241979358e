//! Evaluations, which are long collectives between steps: a newer generation waits for their end,
//! the next generation repeats them after a lost peer, and a rank that must leave does not wait for
//! their end.

use std::time::{Duration, Instant};

use roundhouse_contract::environment::CheckpointEnvironment;
use roundhouse_contract::{BestMetric, Phase, RankStatus};
use serde_json::{Value, json};

use crate::g03_elastic::{assert_same, undisturbed};
use crate::g05_parity::difference;
use crate::g07_checkpoints::{checkpoints, step_of};
use crate::harness::{Job, assert_proven, config, every_steps};

/// Last step of the first of two epochs of the digits.
const EPOCH_ENDS_AT: u64 = 24;
const STEPS: u64 = 48;
/// Size of an evaluation batch: ten batches on each of two ranks.
const BATCH: u64 = 16;

fn training() -> Value {
    let mut config = config();
    config["steps"] = json!(STEPS);
    config["microBatchSize"] = json!(BATCH);
    config
}

/// Workers 0 and 1 of three, during their first evaluation, whose batches are slowed down.
fn evaluating(milliseconds: u64, every: u64) -> Job {
    let job = Job::evaluating(&training(), 3, milliseconds, every);
    job.issue_to(1, &[0, 1]);
    job.wait_for_nodes(&[0, 1], "an evaluation", |status| {
        (status.phase, status.step) == (Phase::Evaluating, EPOCH_ENDS_AT)
    });
    job
}

fn has_evaluated(status: &RankStatus) -> bool {
    let progress = status.progress.as_ref();
    progress.is_some_and(|progress| progress.eval_accuracy.is_some())
}

#[test]
fn evaluations_do_not_depend_on_the_number_of_processes() {
    let mut config = training();
    config["eval"] = json!({"everyEpochs": 0, "everySteps": 9});
    config["steps"] = json!(20);
    for world in [1, 3] {
        let volume = tempfile::tempdir().unwrap();
        let settings = CheckpointEnvironment {
            best: Some(BestMetric::Loss),
            ..every_steps(volume.path().to_owned(), 1_000)
        };
        let mut job = Job::with_checkpoints(&config, world, settings);
        job.issue_when_ready(1);
        job.complete();
        let logs = job.logs();
        let evaluated = logs.lines().filter(|line| line.contains("test loss"));
        let steps: Vec<&str> = evaluated
            .filter_map(|line| line.split_whitespace().nth(1))
            .collect();
        assert_eq!(steps, ["9", "18", "20"], "{world} processes\n{logs}");
        assert!(volume.path().join("best.json").exists(), "{logs}");
    }
}

#[test]
pub(crate) fn newer_generation_starts_right_after_an_evaluation() {
    let mut job = evaluating(400, 20);
    job.issue_to(2, &[0, 1, 2]);
    job.wait_for("the generation", |status| {
        status.generation == 2 && status.phase == Phase::Training
    });
    // The newcomer has taken part in no evaluation, so the evaluation was not repeated, and no step
    // came before it.
    let of = |node| job.status(node, 0).unwrap();
    assert!(
        has_evaluated(&of(0)) && has_evaluated(&of(1)),
        "{}",
        job.logs()
    );
    assert!(!has_evaluated(&of(2)), "{}", job.logs());
    let first_line = job.first_step_of(2);
    assert_eq!(first_line, EPOCH_ENDS_AT + 1, "{}", job.logs());
    job.pace_evaluations(0);
    job.complete();
    assert_same(&job, &undisturbed(&training()), "a growth in an evaluation");
    assert_proven(job.volume(), STEPS);
}

#[test]
fn failed_evaluation_is_repeated_in_the_next_generation() {
    let mut job = evaluating(200, 20);
    job.signal(1, "-KILL");
    assert_eq!(job.exit_code(1), None);
    job.pace_evaluations(0);
    job.issue_to(2, &[0, 2]);
    job.wait_for_nodes(&[0, 2], "its result", has_evaluated);
    let at = |node| job.status(node, 0).unwrap().generation;
    assert_eq!((at(0), at(2)), (2, 2), "{}", job.logs());
    for node in [0, 2] {
        assert_eq!(job.exit_code(node), Some(0), "{}", job.logs());
    }
    assert_same(&job, &undisturbed(&training()), "a loss in an evaluation");
    assert_proven(job.volume(), STEPS);
}

#[test]
fn rank_that_leaves_an_evaluation_strands_the_others() {
    let mut job = Job::evaluating(&training(), 3, 400, 20);
    job.issue_to(1, &[0, 1, 2]);
    job.wait_for("an evaluation", |status| status.phase == Phase::Evaluating);
    job.signal(1, "-TERM");
    assert_eq!(job.exit_code(1), Some(143), "{}", job.logs());
    job.wait_for_nodes(&[0, 2], "the report", |status| {
        status.phase == Phase::Stranded
    });
    job.pace_evaluations(0);
    job.issue_to(2, &[0, 2]);
    for node in [0, 2] {
        assert_eq!(job.exit_code(node), Some(0), "{}", job.logs());
    }
    assert_same(&job, &undisturbed(&training()), "a leave in an evaluation");
    assert_proven(job.volume(), STEPS);
}

#[test]
pub(crate) fn ranks_asked_to_leave_in_an_evaluation_save_and_leave() {
    // Each evaluation takes 20 s; a checkpoint is saved only at the end.
    let mut job = evaluating(2_000, 1_000);
    let asked_at = Instant::now();
    for rank in [0, 1, 2] {
        job.signal(rank, "-TERM");
    }
    assert_eq!(job.exit_codes(), [Some(143); 3], "{}", job.logs());
    let elapsed = asked_at.elapsed();
    println!("all have left after {elapsed:.1?}");
    assert!(elapsed < Duration::from_secs(15), "{elapsed:?}");
    let saved = checkpoints(job.volume());
    assert_eq!(
        saved.iter().map(|path| step_of(path)).collect::<Vec<_>>(),
        [EPOCH_ENDS_AT],
        "{}",
        job.logs()
    );
    // The next job runs the evaluation that was left out.
    let again = Job::with_checkpoints(&training(), 1, every_steps(job.volume().to_owned(), 1_000));
    again.issue_when_ready(2);
    again.wait_for("its result", has_evaluated);
}

#[test]
fn averaged_weights_are_evaluated_and_written() {
    let trained = |decay: Option<f64>, nodes| {
        let mut config = config();
        if let Some(decay) = decay {
            config["optimizer"]["ema"] = json!({"decay": decay});
        }
        let mut job = Job::train(&config, nodes, 1);
        job.complete();
        let loss = job.status(0, 0).unwrap().progress.unwrap().eval_loss;
        (job.weights(), loss.unwrap())
    };
    let (plain, plain_loss) = trained(None, 1);
    // An average without memory equals the weights.
    let (forgetful, loss) = trained(Some(0.0), 1);
    assert!(difference(&forgetful, &plain) <= 1e-6, "{loss}");
    assert!((loss - plain_loss).abs() <= 1e-6 * plain_loss);
    let (averaged, loss) = trained(Some(0.9), 1);
    assert!(difference(&averaged, &plain) > 1e-3, "{loss}");
    assert!((loss - plain_loss).abs() > 1e-3 * plain_loss);
    let (by_two, loss_of_two) = trained(Some(0.9), 2);
    assert!(difference(&by_two, &averaged) <= 1e-6);
    assert!((loss - loss_of_two).abs() <= 1e-6 * loss);
}
