//! Jobs that continue from a checkpoint after a suspension, an interrupt or a hung volume.

use roundhouse_tests::local::{LocalRun, job};
use rustix::process::Signal;

/// Milliseconds added to each step, so that an event finds the job training.
const PAUSE_MILLIS: u64 = 3;

#[test]
fn resumed_job_ends_with_bit_identical_weights() {
    let mut undisturbed = LocalRun::start(&job(2, 1_500), &[]).unwrap();
    assert!(
        undisturbed.end().unwrap().success(),
        "{}",
        undisturbed.output()
    );
    let mut run = LocalRun::start(&job(2, 1_500), &[]).unwrap();
    run.slow_down(PAUSE_MILLIS).unwrap();
    run.wait_for("steps", |run| run.step() > 50).unwrap();
    run.edit(|spec| spec["suspend"] = true.into()).unwrap();
    run.wait_for("the end of all workers", |run| run.agents().is_empty())
        .unwrap();
    run.wait_for("a message about the saved step", |run| {
        run.output()
            .contains("Suspended: no workers; the newest known checkpoint holds")
    })
    .unwrap();
    run.edit(|spec| spec["suspend"] = false.into()).unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
    run.audit().unwrap();
    assert!(
        run.weights().unwrap() == undisturbed.weights().unwrap(),
        "the weights are not equal bit for bit"
    );
    assert!(
        run.output().contains("loaded checkpoint"),
        "{}",
        run.output()
    );
}

#[test]
fn second_run_in_a_directory_resumes_from_checkpoint() {
    let mut first = LocalRun::start(&job(2, 1_500), &[]).unwrap();
    first.slow_down(PAUSE_MILLIS).unwrap();
    first.wait_for("steps", |run| run.step() > 50).unwrap();
    first.signal(Signal::INT).unwrap();
    assert_eq!(first.end().unwrap().code(), Some(130), "{}", first.output());
    let saved = format!("is saved in {}", first.dir().join("state").display());
    assert!(first.output().contains(&saved), "{}", first.output());
    first.restart(&[]).unwrap();
    assert!(first.end().unwrap().success(), "{}", first.output());
    first.audit().unwrap();
    assert!(
        first.output().contains("loaded checkpoint"),
        "{}",
        first.output()
    );
}

#[test]
fn hung_volume_is_reported_and_delays_success() {
    const CHECKPOINT_IO_TIMEOUT: (&str, &str) = ("ROUNDHOUSE_CHECKPOINT_IO_TIMEOUT_SECONDS", "5");
    let mut wanted = job(2, 1_500);
    wanted["spec"]["checkpoint"] =
        serde_json::json!({"volume": {"hostPath": {"path": "/srv"}}, "everySteps": 50});
    let mut run = LocalRun::start(&wanted, &[CHECKPOINT_IO_TIMEOUT]).unwrap();
    run.slow_down(PAUSE_MILLIS).unwrap();
    run.wait_for("steps", |run| run.step() > 120).unwrap();
    run.pace_volume("hold").unwrap();
    let logs = |words: &'static str| move |run: &LocalRun| run.output().contains(words);
    run.wait_for(
        "a report of the hung volume",
        logs("trouble with checkpoints: "),
    )
    .unwrap();
    run.wait_for("the failure of a worker", logs("VolumeFailed"))
        .unwrap();
    assert!(!run.output().contains("Succeeded"), "{}", run.output());
    run.pace_volume("0").unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
    run.audit().unwrap();
    let output = run.output();
    assert!(output.contains("loaded checkpoint"), "{output}");
}
