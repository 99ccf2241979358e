//! The best checkpoint by evaluations: it is kept beside the newest checkpoints, and a kill at any
//! point leaves either the old or the new best checkpoint.

use std::path::Path;

use roundhouse_contract::BestMetric;
use roundhouse_contract::environment::CheckpointEnvironment;
use serde_json::{Value, json};

use crate::g03_elastic::assert_same;
use crate::g05_parity::difference;
use crate::g07_checkpoints::{checkpoints, exported, step_of};
use crate::harness::{Job, assert_proven, config, every_steps};

/// Steps of an epoch of the digits; an evaluation follows each epoch.
const EPOCH: u64 = 24;
const EPOCHS: u64 = 8;
const STEPS: u64 = EPOCH * EPOCHS;

/// A training whose test loss falls first and then rises, because the learning rate rises.
fn overshooting() -> Value {
    let mut config = config();
    config["steps"] = json!(STEPS);
    config["optimizer"]["learningRate"] = json!(1.0);
    config["schedule"] = json!({"warmupSteps": STEPS});
    config
}

fn by_loss(volume: &Path) -> CheckpointEnvironment {
    CheckpointEnvironment {
        best: Some(BestMetric::Loss),
        ..every_steps(volume.to_owned(), 10)
    }
}

/// Trains to the end, or until an injected fault kills a worker.
fn train(volume: &Path, generation: u64, faults: &[(u32, &str)]) -> Job {
    let job = Job::sharing(&overshooting(), 2, faults, Some(by_loss(volume)));
    job.issue_when_ready(generation);
    job
}

/// The step and the value in `best.json`.
fn named(volume: &Path) -> (u64, f64) {
    let text = std::fs::read_to_string(volume.join("best.json")).unwrap();
    let pointer: Value = serde_json::from_str(&text).unwrap();
    let checkpoint = volume.join(pointer["checkpoint"].as_str().unwrap());
    let step = pointer["step"].as_u64().unwrap();
    assert_eq!(step_of(&checkpoint), step);
    let value = pointer["value"].as_f64().unwrap();
    assert_eq!(scores(&checkpoint)["loss"].as_f64(), Some(value));
    (step, value)
}

fn scores(checkpoint: &Path) -> Value {
    let text = std::fs::read_to_string(checkpoint.join("manifest.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["scores"].clone()
}

/// Steps and losses of the evaluations in a log.
fn evaluations(job: &Job) -> Vec<(u64, f64)> {
    let of_line = |line: &str| {
        let step = line.split("step ").nth(1)?.split(' ').next()?;
        let loss = line.split("test loss ").nth(1)?.split(' ').next()?;
        Some((step.parse().ok()?, loss.parse().ok()?))
    };
    job.logs().lines().filter_map(of_line).collect()
}

fn steps_kept(volume: &Path) -> Vec<u64> {
    checkpoints(volume)
        .iter()
        .map(|path| step_of(path))
        .collect()
}

#[test]
fn best_checkpoint_is_kept_beside_newer_ones() {
    let volume = tempfile::tempdir().unwrap();
    let mut job = train(volume.path(), 1, &[]);
    job.complete();
    let evaluations = evaluations(&job);
    assert_eq!(evaluations.len() as u64, EPOCHS, "{}", job.logs());
    let best = evaluations.iter().min_by(|l, r| l.1.total_cmp(&r.1));
    let (step, loss) = *best.unwrap();
    assert!(step < STEPS - 20, "the last is no worse: {evaluations:?}");
    let (named_step, value) = named(volume.path());
    assert_eq!(named_step, step, "{evaluations:?}");
    assert!((value - loss).abs() < 1e-4, "{value} {loss}");
    let kept = steps_kept(volume.path());
    assert_eq!((kept[0], kept.len(), kept[2]), (step, 3, STEPS), "{kept:?}");
    assert!((job.metric(0, "roundhouse_train_best_checkpoint_step") - step as f64).abs() < 0.5);
    assert_proven(volume.path(), STEPS);

    let [best, newest] = [&["--best"][..], &[]].map(|which| exported(volume.path(), which));
    let says = best.1.contains(&format!("step {step}"));
    assert!(best.0 == Some(0) && says, "{}", best.1);
    assert!(difference(&best.2, &newest.2) > 0.0, "{}", best.1);

    // A job without a newer checkpoint continues from the best one and reaches the same weights.
    let old = checkpoints(volume.path());
    for newer in &old[1..] {
        std::fs::remove_dir_all(newer).unwrap();
    }
    let mut again = train(volume.path(), 2, &[]);
    again.complete();
    assert!(
        again
            .logs()
            .contains(&format!("step {step} of generation 1")),
        "{}",
        again.logs()
    );
    assert_eq!(named(volume.path()), (step, value));
    assert_same(&again, &job.weights(), "from the best checkpoint");
}

#[test]
fn result_is_named_best_before_rank_0_ends() {
    let mut improving = config();
    improving["steps"] = json!(2 * EPOCH);
    let volume = tempfile::tempdir().unwrap();
    let settings = by_loss(volume.path());
    let mut job = Job::sharing(&improving, 2, &[], Some(settings));
    job.pace_volume("200");
    job.issue_when_ready(1);
    job.complete();
    assert_eq!(named(volume.path()).0, 2 * EPOCH, "{}", job.logs());
    let kept = steps_kept(volume.path());
    assert_eq!((kept.len(), kept[1]), (2, 2 * EPOCH), "{kept:?}");
}

#[test]
fn kill_leaves_the_old_or_the_new_best_checkpoint() {
    let second = 2 * EPOCH;
    for (point, expected) in [("Complete", EPOCH), ("Named", EPOCH)] {
        let volume = tempfile::tempdir().unwrap();
        let fault = format!("0:{second}:{point}");
        let mut job = train(volume.path(), 1, &[(0, &fault)]);
        assert_eq!(job.exit_code(0), None, "{point}: {}", job.logs());
        job.signal(1, "-KILL");
        job.exit_code(1);
        let (step, value) = named(volume.path());
        assert_eq!(step, expected, "{point}");
        let is_complete = steps_kept(volume.path()).contains(&second);
        assert_eq!(is_complete, point == "Named", "{point}");

        // The next workers find a complete checkpoint and end with the same best checkpoint.
        let mut again = train(volume.path(), 2, &[]);
        again.complete();
        let (best, best_value) = named(volume.path());
        let whole = tempfile::tempdir().unwrap();
        let mut undisturbed = train(whole.path(), 1, &[]);
        undisturbed.complete();
        assert_eq!(named(whole.path()).0, best, "{point}");
        assert!((named(whole.path()).1 - best_value).abs() < 1e-6, "{point}");
        assert!(best_value < value, "{point}: {best_value} {value}");
        assert_proven(volume.path(), STEPS);
    }
}
