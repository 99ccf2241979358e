//! Hundreds of random faults in one run, drawn from a seed that the test prints.
//!
//! - `ROUNDHOUSE_CHAOS_SEED` repeats a run, and `ROUNDHOUSE_CHAOS_EVENTS` sets the number of
//!   faults.
//! - `ROUNDHOUSE_CHAOS_MODEL=gpt2` trains a small transformer with dropout instead of a perceptron,
//!   in the test with slices only: without slices, rounding differences grow over some hundred
//!   steps.
//! - `ROUNDHOUSE_PYTHON` names an interpreter with PyTorch and the package `roundhouse` for a
//!   script, and `ROUNDHOUSE_TRANSFORMERS` one that has transformers, too.

use std::time::{Duration, Instant};

use anyhow::ensure;
use roundhouse_tests::local::LocalRun;
use roundhouse_tests::weights::difference;

mod faults;
mod subject;

use faults::Chaos;
use subject::{Pace, Subject, is_gpt2, program};

/// The number of events between two checks that training still makes progress.
const EVENTS_PER_CHECK: u64 = 20;
/// Ranks give up a silent peer after 3 s, and send the state in hundreds of chunks, so that faults
/// hit transfers of the state.
const VARIABLES: [(&str, &str); 2] = [
    ("ROUNDHOUSE_COLLECTIVE_TIMEOUT_SECONDS", "3"),
    ("ROUNDHOUSE_FAULT_CHUNK_BYTES", "64"),
];

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn hundred_faults_change_weights_by_rounding_only() {
    if !is_gpt2() {
        survive(Subject::BuiltIn);
    }
}

#[test]
fn hundred_faults_with_slices_change_no_bit() {
    survive(Subject::Slices);
}

#[test]
fn faults_of_divided_weights_change_no_bit() {
    survive(Subject::Divided);
}

#[test]
#[ignore = "needs PyTorch: tests/run/python-local"]
fn hundred_faults_of_a_script_change_weights_by_rounding() {
    survive(Subject::Script);
}

#[test]
#[ignore = "needs PyTorch: tests/run/python-local"]
fn faults_of_a_sharded_gpt_change_weights_by_rounding() {
    survive(Subject::Sharded);
}

#[test]
#[ignore = "needs transformers: tests/run/python-local"]
fn faults_of_a_fine_tuning_change_weights_by_rounding() {
    survive(Subject::FineTuning);
}

/// Panics while the run exists, which then keeps its directory with the logs.
fn survive(subject: Subject) {
    let seed = variable("ROUNDHOUSE_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("{subject:?}: ROUNDHOUSE_CHAOS_SEED={seed}");
    let pace = subject.pace();
    let events = variable("ROUNDHOUSE_CHAOS_EVENTS").unwrap_or(pace.events);
    let steps = events * pace.steps_per_event;
    // A hundred events of the built-in trainer take about two minutes.
    let patience = Duration::from_secs(300 + 2 * events);
    let directory = tempfile::tempdir().unwrap();
    let program = program(directory.path()).unwrap();
    let alone = subject.undisturbed(steps).unwrap();
    let mut undisturbed = LocalRun::start_program(program.clone(), &alone, &[]).unwrap();
    let status = undisturbed.end_within(patience).unwrap();
    assert!(status.success(), "{}", undisturbed.output());

    let wanted = subject.disturbed(steps).unwrap();
    let run = LocalRun::start_program(program, &wanted, &VARIABLES).unwrap();
    let mut chaos = Chaos::of(run, seed, pace.most_workers);
    inject_all(&mut chaos, &pace, events, steps).unwrap();
    let status = chaos.run.end_within(patience).unwrap();
    assert!(status.success(), "seed {seed}\n{}", chaos.run.output());
    println!("{}", chaos.run.audit().unwrap());
    if matches!(subject, Subject::Slices | Subject::Divided) {
        println!("{}", chaos.run.compare(&undisturbed).unwrap());
    }
    let expected = subject.weights(&undisturbed, steps).unwrap();
    let apart = difference(&expected, &subject.weights(&chaos.run, steps).unwrap()).unwrap();
    println!("{subject:?}: weights differ by {apart:e} after {steps} steps");
    let tolerance = subject.tolerance(steps);
    assert!(
        apart <= tolerance,
        "seed {seed}: {apart:e} is above {tolerance:e}"
    );
}

/// Injects all events while the job trains, and lets it train at full speed afterwards.
fn inject_all(chaos: &mut Chaos, pace: &Pace, events: u64, steps: u64) -> anyhow::Result<()> {
    chaos.run.slow_down(pace.pause_millis)?;
    let started = Instant::now();
    chaos.run.wait_for("steps", |run| run.step() > 5)?;
    let events_per_check = EVENTS_PER_CHECK.min(events.div_ceil(2));
    while chaos.total() < events {
        if pace.waits && chaos.rng.bool() {
            chaos.wait_for_a_step()?;
        }
        let happened = chaos.inject();
        let pause = Duration::from_millis(chaos.rng.u64(20..400));
        chaos.pause(pause);
        let before = chaos.run.step();
        if before > steps / 2 {
            // On this machine workers prepare for longer than they train.
            chaos.run.slow_down(10 * pace.pause_millis)?;
        }
        if !happened || !chaos.total().is_multiple_of(events_per_check) {
            continue;
        }
        let (total, elapsed) = (chaos.total(), started.elapsed());
        println!("{total} events, step {before}, {elapsed:.0?}");
        chaos.pause(Duration::from_secs(4));
        let progresses = |run: &LocalRun| run.step() > before;
        chaos.run.wait_for("progress", progresses)?;
    }
    let (counts, step) = (chaos.counts(), chaos.run.step());
    println!("{counts} in {:.0?}, at step {step}", started.elapsed());
    ensure!(step < steps, "all events must find the job training");
    chaos.pause(Duration::from_secs(4));
    chaos.run.edit(|spec| {
        spec["workers"]["replicas"] = 2.into();
        spec["workers"]["spares"] = 0.into();
    })?;
    chaos.run.slow_down(0)
}
