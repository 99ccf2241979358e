//! Training in 16-bit floats: loss scaling, and parity with fp32.

use std::path::Path;

use serde_json::{Value, json};

use crate::g05_parity::difference;
use crate::g07_checkpoints::{checkpoints, wait_for_checkpoint};
use crate::harness::{Job, assert_proven, config, every_steps};

const STEPS: u64 = 60;
/// Tolerance relative to the largest weight of each tensor. Gradients have 11 bits, and sums of
/// other lengths round differently.
const TOLERANCE: f64 = 5e-3;

fn fp16(scaling: &Value) -> Value {
    let mut config = config();
    config["steps"] = json!(STEPS);
    config["precision"] = json!("fp16");
    config["lossScaling"] = scaling.clone();
    config["optimizer"]["maxGradNorm"] = json!(1.0);
    config
}

fn loss_scale(job: &Job) -> f64 {
    job.metric(0, "roundhouse_train_loss_scale")
}

fn saved_scale(volume: &Path) -> (u64, Value) {
    let checkpoint = checkpoints(volume).pop().unwrap();
    let text = std::fs::read_to_string(checkpoint.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&text).unwrap();
    (
        manifest["step"].as_u64().unwrap(),
        manifest["lossScale"].clone(),
    )
}

fn assert_scale(job: &Job, scale: f64) {
    let found = loss_scale(job);
    assert!((found - scale).abs() < 0.5, "{found}, not {scale}");
}

#[test]
fn fp16_does_not_depend_on_the_number_of_processes() {
    let config = fp16(&json!({"growthInterval": 20}));
    let mut alone = Job::train(&config, 1, 1);
    alone.complete();
    assert_eq!(alone.progress().skipped_steps, 0);
    assert_scale(&alone, 524_288.0);
    let mut fp32 = config.clone();
    fp32["precision"] = json!("fp32");
    fp32.as_object_mut().unwrap().remove("lossScaling");
    let mut exact = Job::train(&fp32, 1, 1);
    exact.complete();
    assert!(loss_scale(&exact).abs() < 0.5);
    let rounding = difference(&alone.weights(), &exact.weights());
    println!("fp16 differs from fp32 by {rounding:.1e}");
    assert!(rounding > 0.0 && rounding < 0.05, "{rounding:e}");
    for (nodes, procs_per_worker) in [(2, 1), (3, 1), (1, 2)] {
        let mut job = Job::train(&config, nodes, procs_per_worker);
        job.complete();
        assert_scale(&job, 524_288.0);
        let found = difference(&job.weights(), &alone.weights());
        println!("{nodes} x {procs_per_worker} differ from 1 by {found:.1e}");
        assert!(found <= TOLERANCE, "{found:e}");
    }
}

#[test]
fn bf16_does_not_depend_on_the_number_of_processes() {
    let mut config = config();
    config["steps"] = json!(STEPS);
    let mut exact = Job::train(&config, 1, 1);
    exact.complete();
    config["precision"] = json!("bf16");
    let mut alone = Job::train(&config, 1, 1);
    alone.complete();
    let rounding = difference(&alone.weights(), &exact.weights());
    println!("bf16 differs from fp32 by {rounding:.1e}");
    assert!(rounding > 1e-4 && rounding < 0.1, "{rounding:e}");
    for nodes in [2, 3] {
        let mut job = Job::train(&config, nodes, 1);
        job.complete();
        let found = difference(&job.weights(), &alone.weights());
        println!("{nodes} processes differ from 1 by {found:.1e}");
        assert!(found <= 8.0 * TOLERANCE, "{found:e}");
    }
}

#[test]
fn overflowing_initial_scale_is_halved_until_it_fits() {
    let config = fp16(&json!({"initial": 2.0_f64.powi(40)}));
    let mut alone = Job::train(&config, 1, 1);
    alone.complete();
    let skipped = alone.progress().skipped_steps;
    assert!((10..30).contains(&skipped), "{skipped}");
    let scale_after = |halvings: u64| 2.0_f64.powi(40 - i32::try_from(halvings).unwrap());
    assert_scale(&alone, scale_after(skipped));
    for nodes in [2, 3] {
        let mut job = Job::train(&config, nodes, 1);
        job.complete();
        // A rank with fewer samples has smaller sums, so a step near the limit may overflow with
        // one number of ranks and not with another.
        let own = job.progress().skipped_steps;
        assert!(own.abs_diff(skipped) <= 2, "{own} and {skipped} skipped");
        assert_scale(&job, scale_after(own));
        for job in [&alone, &job] {
            let found = job.accuracy();
            assert!(found > 0.6, "{nodes} processes: {found}");
        }
    }
}

#[test]
fn fp16_in_slices_is_bit_identical() {
    let mut config = fp16(&json!({"initial": 2.0_f64.powi(40), "growthInterval": 4}));
    config["slices"] = json!(4);
    let mut alone = Job::train(&config, 1, 1);
    let expected = alone.complete();
    assert!(alone.progress().skipped_steps > 10);
    for nodes in [2, 3] {
        let mut job = Job::train(&config, nodes, 1);
        assert!(job.complete() == expected, "{nodes} processes: other bits");
        assert_eq!(job.progress().skipped_steps, alone.progress().skipped_steps);
        assert_scale(&job, loss_scale(&alone));
    }
}

#[test]
pub(crate) fn loss_scale_survives_a_kill_a_join_and_a_checkpoint() {
    let mut config = fp16(&json!({"initial": 1_024.0, "growthInterval": 7}));
    // Rank 0 is lost in step 25, and a worker without a state replaces it.
    let mut job = Job::spoilt(&config, 2, 1, "", Some((0, "0:25:Forward")));
    assert_eq!(job.exit_code(0), None, "{}", job.logs());
    job.respawn(0);
    job.issue_to(2, &[0, 1]);
    job.complete();
    assert_proven(job.volume(), STEPS);
    // 60 steps are 8 intervals of 7 and 4 steps.
    assert_scale(&job, 1_024.0 * 256.0);
    let saved = json!({"scale": 262_144.0, "cleanSteps": 4});
    assert_eq!(saved_scale(job.volume()), (STEPS, saved));

    // All processes are lost, and training continues from the checkpoint.
    let volume = tempfile::tempdir().unwrap();
    let keep = || every_steps(volume.path().to_owned(), 10);
    config["lossScaling"]["growthInterval"] = json!(1_000_000);
    config["steps"] = json!(1_000_000);
    let mut job = Job::with_checkpoints(&config, 1, keep());
    job.issue_when_ready(1);
    wait_for_checkpoint(&job);
    job.signal(0, "-KILL");
    assert_eq!(job.exit_code(0), None);
    let (step, _) = saved_scale(volume.path());
    config["steps"] = json!(step + 10);
    // The configured initial scale counts only when a training starts.
    config["lossScaling"]["initial"] = json!(4.0);
    let mut resumed = Job::with_checkpoints(&config, 2, keep());
    resumed.issue_when_ready(2);
    resumed.complete();
    let saved = json!({"scale": 1_024.0, "cleanSteps": step + 10});
    assert_eq!(saved_scale(volume.path()), (step + 10, saved));
}

#[test]
fn non_finite_loss_ends_fp16_training_unless_skipped() {
    let mut config = fp16(&json!({}));
    let mut job = Job::spoilt(&config, 2, 1, "20", None);
    assert_eq!(job.exit_codes(), [Some(64), Some(64)], "{}", job.logs());
    config["onNonFinite"] = json!("Skip");
    let mut job = Job::spoilt(&config, 2, 1, "20", None);
    job.complete();
    assert_eq!(job.progress().skipped_steps, 1);
    // The loss scale did not overflow.
    assert_scale(&job, 65_536.0);
}
