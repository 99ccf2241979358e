//! An evaluation is a long collective between steps: a newer generation waits for it, a lost peer does not cost it,
//! and a rank that is asked to leave does not wait for its end.

use std::time::{Duration, Instant};

use roundhouse_contract::environment::CheckpointEnvironment;
use roundhouse_contract::{BestMetric, Phase, RankStatus};
use serde_json::{Value, json};

use crate::checkpoints::{checkpoints, step_of};
use crate::elastic::{assert_same, undisturbed};
use crate::harness::{Job, assert_proven, config, every_steps};
use crate::parity::difference;

/// The first of two epochs of the digits ends here.
const EPOCH_ENDS_AT: u64 = 24;
const STEPS: u64 = 48;
/// Ten batches on each of two ranks.
const BATCH: u64 = 16;

fn training() -> Value {
    let mut config = config();
    config["steps"] = json!(STEPS);
    config["microBatchSize"] = json!(BATCH);
    config
}

/// Workers 0 and 1 of three, in their first evaluation, each batch of which takes so long.
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
fn any_number_of_processes_evaluates_after_the_same_steps_and_keeps_the_best_of_them() {
    let mut config = training();
    config["eval"] = json!({"everyEpochs": 0, "everySteps": 9});
    config["steps"] = json!(20);
    for world in [1, 3] {
        let volume = tempfile::tempdir().unwrap();
        let settings = CheckpointEnvironment {
            best: Some(BestMetric::Loss),
            ..every_steps(volume.path().to_owned(), 1_000)
        };
        let mut job = Job::keeping(&config, world, settings);
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
pub(crate) fn a_newer_generation_waits_for_an_evaluation_and_comes_right_after_it() {
    let mut job = evaluating(400, 20);
    job.issue_to(2, &[0, 1, 2]);
    job.wait_for("the generation", |status| {
        status.generation == 2 && status.phase == Phase::Training
    });
    // The newcomer has taken no part in one, so it was not done again; nor has a step gone before.
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
fn an_evaluation_that_breaks_is_done_in_the_next_generation() {
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
fn a_rank_that_leaves_in_an_evaluation_before_a_newer_generation_strands_the_others() {
    let mut job = Job::evaluating(&training(), 3, 400, 20);
    job.issue_to(1, &[0, 1, 2]);
    job.wait_for("an evaluation", |status| status.phase == Phase::Evaluating);
    job.signal(1, "-TERM");
    assert_eq!(job.exit_code(1), Some(143), "{}", job.logs());
    job.wait_for_nodes(&[0, 2], "word of it", |status| {
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
pub(crate) fn ranks_that_are_all_asked_to_leave_in_a_long_evaluation_save_and_leave() {
    // Twenty seconds each; a checkpoint is saved at the end only.
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
    // It is made up for.
    let again = Job::keeping(&training(), 1, every_steps(job.volume().to_owned(), 1_000));
    again.issue_when_ready(2);
    again.wait_for("its result", has_evaluated);
}

#[test]
fn the_average_of_the_weights_is_what_is_evaluated_and_written_at_the_end() {
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
    // An average that forgets at once is the weights themselves.
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
