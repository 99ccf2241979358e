//! Steps that are committed as on a GPU: the device decides, and the host launches the next step before it reads what
//! the last one has come to. On CPUs the same code runs if it is told to. Trainings have the same numbers as those
//! whose steps the host commits, and survive the same faults.

use std::path::PathBuf;

use roundhouse_contract::Phase;
use serde_json::{Value, json};

use crate::checkpoints::{EVERY, beyond, checkpoints, endless, parts, start, wait_for_checkpoint};
use crate::elastic::{assert_same, short, survive, undisturbed};
use crate::harness::{Job, assert_proven, compared, config, every_steps, on_device};
use crate::{checkpoints as saves, elastic, evaluation, faults, fp16, nccl, not_finite, straggler};

/// Longer than a test.
const NEVER: u32 = 86_400;
/// A step of [`short`] trainings, and the number of its sum.
const BROKEN: u64 = 20;
/// Less than two epochs: evaluations at the end of the first one and at the end. A checkpoint halfway and at the end,
/// so none is left out because another one is being written.
const STEPS: u64 = 40;

/// What a training leaves behind.
struct Left {
    job: Job,
    weights: Vec<u8>,
    /// Names of checkpoints, and what is in them.
    saved: Vec<(String, Value)>,
    evaluations: Vec<String>,
}

fn trained(mut job: Job) -> Left {
    job.issue_when_ready(1);
    let weights = job.complete();
    let saved = checkpoints(job.volume());
    let of = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, parts(path))
    };
    let logs = job.logs();
    let told = logs.lines().filter(|line| line.contains("test accuracy"));
    let words = |line: &str| line[line.find("step ").unwrap()..].to_owned();
    Left {
        weights,
        saved: saved.iter().map(of).collect(),
        evaluations: told.map(words).collect(),
        job,
    }
}

/// Trains twice, with steps that the host and that the device commits.
fn assert_equal(what: &str, start: impl Fn() -> Job) {
    let host = trained(start());
    let device = on_device(|| trained(start()));
    assert!(host.weights == device.weights, "{what}: other bits");
    let (code, text) = compared(host.job.volume(), device.job.volume());
    assert_eq!(code, Some(0), "{what}: {text}");
    assert!(text.contains(&format!("losses of {STEPS} steps")), "{text}");
    assert_eq!(host.saved, device.saved, "{what}");
    assert_eq!((host.saved.len(), host.evaluations.len()), (2, 2));
    assert_eq!(host.evaluations, device.evaluations, "{what}");
    assert_proven(device.job.volume(), STEPS);
}

fn optimizers() -> [Value; 2] {
    [
        json!({"name": "sgd", "learningRate": 0.05, "momentum": 0.9}),
        json!({
            "name": "adamw", "learningRate": 0.001, "weightDecay": 0.05, "maxGradNorm": 1.0, "ema": {"decay": 0.9},
        }),
    ]
}

fn training(optimizer: &Value) -> Value {
    let mut config = config();
    config["steps"] = json!(STEPS);
    config["optimizer"] = optimizer.clone();
    config["microBatchSize"] = json!(13);
    config
}

#[test]
fn a_training_has_the_same_bits_if_the_device_commits_its_steps() {
    for optimizer in optimizers() {
        let config = training(&optimizer);
        for nodes in [1, 2, 3] {
            // Over NCCL the gradients travel in the same buckets in both cases.
            let what = format!("{}, {nodes} processes", optimizer["name"]);
            assert_equal(&what, || Job::over_nccl(&config, nodes, &[], NEVER));
        }
    }
}

#[test]
fn two_processes_over_gloo_have_the_same_bits_if_the_device_commits_their_steps() {
    let volume = || tempfile::tempdir().unwrap().keep();
    for optimizer in optimizers() {
        let config = training(&optimizer);
        assert_equal(&format!("{}", optimizer["name"]), || {
            Job::keeping(&config, 2, every_steps(volume(), 20))
        });
    }
}

#[test]
fn a_training_in_slices_has_the_same_bits_if_the_device_commits_its_steps() {
    let mut config = training(&optimizers()[1]);
    config["slices"] = json!(4);
    let mut host = Job::train(&config, 1, 1);
    let expected = host.complete();
    for nodes in [1, 2, 3] {
        let found = on_device(|| Job::train(&config, nodes, 1).complete());
        assert!(found == expected, "{nodes} processes: other bits");
    }
    let mut job = on_device(|| Job::over_nccl(&config, 3, &[], NEVER));
    job.issue_when_ready(1);
    assert!(job.complete() == expected, "over NCCL: other bits");
}

#[test]
fn a_rank_killed_at_any_point_costs_the_others_at_most_the_steps_under_way() {
    let expected = undisturbed(&short());
    for (world, victim, point) in [
        (3, 1, "Forward"),
        (3, 2, "Backward"),
        (3, 0, "Agree"),
        (3, 0, "Update"),
        (2, 0, "Commit"),
        (3, 1, "Commit"),
        (4, 2, "Checkpoint"),
    ] {
        on_device(|| survive(world, victim, point, &expected));
    }
}

#[test]
fn a_rank_killed_over_nccl_costs_the_others_at_most_the_steps_under_way() {
    let config = short();
    let expected = undisturbed(&config);
    for (victim, point) in [(1, "Backward"), (0, "Agree"), (1, "Update"), (2, "Commit")] {
        let fault = format!("{victim}:20:{point}");
        let aborts = on_device(|| nccl::survive(&config, victim, &fault, &expected));
        assert_eq!(aborts, [1, 1], "{fault}");
    }
}

/// A sum of gradients is broken on the second of three ranks, and everything after it succeeds on all of them: no rank
/// commits its step.
fn assert_refused(config: &Value, what: &str, said: &str) {
    let expected = undisturbed(config);
    let broken = (1, "ROUNDHOUSE_FAULT_SUM", format!("{BROKEN}:{what}"));
    let mut job = on_device(|| Job::over_nccl_with(config, 3, vec![broken], NEVER));
    job.issue_when_ready(1);
    job.wait_for_nodes(&[0, 1, 2], "doubts", |status| {
        assert!(status.step < BROKEN, "{what}: a broken step is committed");
        status.phase == Phase::Stranded
    });
    assert!(job.logs().contains(said), "{what}: {}", job.logs());
    job.issue_to(2, &[0, 1, 2]);
    assert_eq!(job.exit_codes(), [Some(0); 3], "{}", job.logs());
    assert_same(&job, &expected, what);
    assert_proven(job.volume(), config["steps"].as_u64().unwrap());
}

#[test]
fn ranks_that_hold_different_bits_after_a_sum_do_not_commit() {
    let mut in_slices = short();
    in_slices["slices"] = json!(4);
    for config in [short(), in_slices] {
        assert_refused(&config, "bits", "have different gradients");
    }
}

#[test]
fn ranks_do_not_commit_a_sum_that_lacks_the_part_of_a_rank_that_aborts() {
    assert_refused(&short(), "abort", "is not that of all ranks");
}

#[test]
fn garbage_of_a_neighbour_that_aborts_is_no_sum() {
    on_device(nccl::garbage_of_a_neighbour_that_aborts_is_no_sum);
}

#[test]
fn a_job_grows_and_shrinks_while_it_trains() {
    on_device(elastic::a_job_grows_and_shrinks_while_it_trains);
    on_device(nccl::a_job_over_nccl_grows_and_shrinks_without_an_abort);
    on_device(faults::a_newer_generation_is_entered_at_a_step_boundary_without_losing_a_step);
}

#[test]
fn a_rank_that_is_stopped_is_left_behind() {
    on_device(elastic::a_rank_that_is_stopped_is_left_behind_and_never_commits_again);
    on_device(nccl::a_silent_peer_over_nccl_is_left_behind);
}

#[test]
fn a_training_that_all_leave_goes_on_where_it_was() {
    on_device(saves::a_training_that_all_leave_goes_on_where_it_was);
}

#[test]
fn a_checkpoint_that_is_saved_when_the_last_is_old_enough_is_of_a_whole_step() {
    let volume = tempfile::tempdir().unwrap();
    let mut checkpoint = every_steps(volume.path().to_owned(), EVERY);
    checkpoint.every_steps = None;
    checkpoint.every_seconds = Some(1);
    let mut job = on_device(|| Job::keeping(&endless(), 2, checkpoint));
    job.issue_when_ready(1);
    wait_for_checkpoint(&job);
    for rank in 0..2 {
        job.signal(rank, "-KILL");
    }
    assert_eq!(job.exit_codes(), [None, None]);
    let config = beyond(volume.path());
    let resumed = on_device(|| start(&config, 2, volume.path(), 2).complete());
    let straight = on_device(|| Job::train(&config, 2, 1).complete());
    assert!(resumed == straight, "some bits differ");
    assert_proven(volume.path(), config["steps"].as_u64().unwrap());
}

#[test]
fn evaluations_come_between_steps() {
    on_device(evaluation::a_newer_generation_waits_for_an_evaluation_and_comes_right_after_it);
    on_device(evaluation::ranks_that_are_all_asked_to_leave_in_a_long_evaluation_save_and_leave);
}

#[test]
fn a_step_that_is_not_finite_is_skipped_or_ends_the_training() {
    on_device(
        not_finite::a_skipped_step_leaves_weights_statistics_averages_and_optimizer_as_they_are,
    );
    on_device(not_finite::skipped_steps_in_slices_have_equal_bits_for_every_number_of_processes_and_a_kill);
    on_device(not_finite::too_many_skipped_steps_in_a_row_end_the_training_with_step_and_ranks);
    on_device(
        not_finite::without_the_setting_a_loss_that_is_not_finite_ends_the_training_before_its_step,
    );
}

#[test]
fn a_loss_scale_follows_the_steps_before() {
    on_device(fp16::the_loss_scale_survives_a_kill_a_worker_that_joins_and_a_checkpoint);
}

#[test]
fn a_slow_worker_is_told_by_its_place() {
    on_device(
        straggler::a_slow_worker_is_told_by_its_place_and_its_peers_wait_is_not_their_own_time,
    );
}

#[test]
fn a_training_of_one_step_and_of_two_ends() {
    for steps in [1, 2] {
        let mut config = config();
        config["steps"] = json!(steps);
        let mut job = on_device(|| Job::train(&config, 2, 1));
        job.complete();
        assert_eq!(job.step(), steps);
    }
}
