//! Steps that the device commits, as on GPUs: the host launches the next step before it reads the
//! result of the last one. A variable selects the same code on CPUs. The trainings have the same
//! numbers as those whose steps the host commits, and survive the same faults.

use std::path::PathBuf;

use roundhouse_contract::Phase;
use serde_json::{Value, json};

use crate::g03_elastic::{assert_same, short, survive, undisturbed};
use crate::g07_checkpoints::{
    EVERY, beyond, checkpoints, endless, parts, start, wait_for_checkpoint,
};
use crate::harness::{Job, assert_proven, compared, config, every_steps, on_device};
use crate::{evaluation, fp16, g03_elastic, g07_checkpoints as saves, nccl, not_finite, straggler};

/// Longer than a test.
const NEVER: u32 = 86_400;
/// The step of [`short`] trainings whose sum is broken, which is also the number of the sum.
const BROKEN: u64 = 20;
/// Less than two epochs: evaluations run after the first epoch and at the end. Checkpoints are
/// saved halfway and at the end, so no save is skipped because another one is running.
const STEPS: u64 = 40;

/// The results of a training.
struct Left {
    job: Job,
    weights: Vec<u8>,
    /// Names and contents of the checkpoints.
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
    let evaluations = logs.lines().filter(|line| line.contains("test accuracy"));
    let words = |line: &str| line[line.find("step ").unwrap()..].to_owned();
    Left {
        weights,
        saved: saved.iter().map(of).collect(),
        evaluations: evaluations.map(words).collect(),
        job,
    }
}

/// Trains twice, with steps that the host commits and with steps that the device commits.
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
fn device_commits_give_the_same_bits() {
    for optimizer in optimizers() {
        let config = training(&optimizer);
        for nodes in [1, 2, 3] {
            // Over NCCL the gradients have the same buckets in both cases.
            let what = format!("{}, {nodes} processes", optimizer["name"]);
            assert_equal(&what, || Job::over_nccl(&config, nodes, &[], NEVER));
        }
    }
}

#[test]
fn device_commits_over_gloo_give_the_same_bits() {
    let volume = || tempfile::tempdir().unwrap().keep();
    for optimizer in optimizers() {
        let config = training(&optimizer);
        assert_equal(&format!("{}", optimizer["name"]), || {
            Job::with_checkpoints(&config, 2, every_steps(volume(), 20))
        });
    }
}

#[test]
fn device_commits_in_slices_give_the_same_bits() {
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
fn killed_rank_costs_at_most_the_steps_in_progress() {
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
fn killed_rank_over_nccl_costs_at_most_the_steps_in_progress() {
    let config = short();
    let expected = undisturbed(&config);
    for (victim, point) in [(1, "Backward"), (0, "Agree"), (1, "Update"), (2, "Commit")] {
        let fault = format!("{victim}:20:{point}");
        let aborts = on_device(|| nccl::survive(&config, victim, &fault, &expected));
        assert_eq!(aborts, [1, 1], "{fault}");
    }
}

/// Breaks a sum of gradients on the second of three ranks; all later collectives succeed. No rank
/// may commit the step.
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
fn different_gradients_after_a_sum_are_not_committed() {
    let mut in_slices = short();
    in_slices["slices"] = json!(4);
    for config in [short(), in_slices] {
        assert_refused(&config, "bits", "have different gradients");
    }
}

#[test]
fn sum_without_the_part_of_a_rank_is_not_committed() {
    assert_refused(&short(), "abort", "is not that of all ranks");
}

#[test]
fn garbage_of_an_aborting_neighbour_is_not_committed() {
    on_device(nccl::garbage_of_an_aborting_neighbour_is_not_committed);
}

#[test]
fn job_grows_and_shrinks_while_it_trains() {
    on_device(g03_elastic::job_grows_and_shrinks_while_it_trains);
    on_device(nccl::job_over_nccl_grows_and_shrinks_without_an_abort);
    on_device(g03_elastic::newer_generation_starts_at_a_step_boundary);
}

#[test]
fn stopped_rank_is_left_behind() {
    on_device(g03_elastic::stopped_rank_is_left_behind_and_never_commits_again);
    on_device(nccl::silent_peer_over_nccl_is_left_behind);
}

#[test]
fn job_that_all_ranks_leave_resumes_at_the_same_step() {
    on_device(saves::job_that_all_ranks_leave_resumes_at_the_same_step);
}

#[test]
fn timed_checkpoint_contains_a_whole_step() {
    let volume = tempfile::tempdir().unwrap();
    let mut checkpoint = every_steps(volume.path().to_owned(), EVERY);
    checkpoint.every_steps = None;
    checkpoint.every_seconds = Some(1);
    let mut job = on_device(|| Job::with_checkpoints(&endless(), 2, checkpoint));
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
fn evaluations_run_between_steps() {
    on_device(evaluation::newer_generation_starts_right_after_an_evaluation);
    on_device(evaluation::ranks_asked_to_leave_in_an_evaluation_save_and_leave);
}

#[test]
fn step_that_is_not_finite_is_skipped_or_ends_the_training() {
    on_device(not_finite::skipped_step_changes_no_state);
    on_device(not_finite::skipped_steps_in_slices_are_bit_identical);
    on_device(not_finite::too_many_consecutive_skips_end_the_training);
    on_device(not_finite::non_finite_loss_ends_the_training_by_default);
}

#[test]
fn loss_scale_follows_the_previous_steps() {
    on_device(fp16::loss_scale_survives_a_kill_a_join_and_a_checkpoint);
}

#[test]
fn slow_worker_is_reported_with_its_rank() {
    on_device(straggler::straggler_is_reported_and_waits_are_not_compute_time);
}

#[test]
fn trainings_of_one_and_two_steps_end() {
    for steps in [1, 2] {
        let mut config = config();
        config["steps"] = json!(steps);
        let mut job = on_device(|| Job::train(&config, 2, 1));
        job.complete();
        assert_eq!(job.step(), steps);
    }
}
