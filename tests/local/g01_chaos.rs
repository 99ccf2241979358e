//! Hundreds of random faults in one run, drawn from a seed that the test prints.
//!
//! - `ROUNDHOUSE_CHAOS_SEED` repeats a run, and `ROUNDHOUSE_CHAOS_EVENTS` sets the number of
//!   faults.
//! - `ROUNDHOUSE_CHAOS_MODEL=gpt2` trains a small transformer with dropout instead of a perceptron,
//!   in the test with slices only: without slices, rounding differences grow over some hundred
//!   steps.
//! - `ROUNDHOUSE_PYTHON` names an interpreter with PyTorch and the package `roundhouse` for a
//!   script.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use roundhouse_tests::local::{LocalRun, Program, job};
use roundhouse_tests::weights::difference;
use serde_json::{Value, json};

use crate::python;

mod faults;

use faults::Chaos;

const EVENTS: u64 = 100;
const MOST_WORKERS: u32 = 4;
/// Enough steps that training outlasts all events.
const STEPS_PER_EVENT: u64 = 20;
/// The workers of a script import PyTorch for seconds before the next event can affect them.
const STEPS_PER_EVENT_OF_SCRIPT: u64 = 60;
/// Milliseconds added to each step until all events have occurred.
const PAUSE_MILLIS: u64 = 25;
/// The number of events between two checks that training still makes progress.
const EVENTS_PER_CHECK: u64 = 20;
/// The allowed difference per hundred steps, as a fraction of the largest weight of a tensor.
const TOLERANCE: f32 = 1e-6;
/// The network of the script is smaller, so its rounding differences are smaller, too.
const TOLERANCE_OF_SCRIPT: f32 = 1e-7;
/// The number of slices limits the number of workers.
const SLICES: u32 = MOST_WORKERS;
/// Ranks give up a silent peer after 3 s, and send the state in hundreds of chunks, so that faults
/// hit transfers of the state.
const VARIABLES: [(&str, &str); 2] = [
    ("ROUNDHOUSE_COLLECTIVE_TIMEOUT_SECONDS", "3"),
    ("ROUNDHOUSE_FAULT_CHUNK_BYTES", "64"),
];

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What a run trains, and how much faults may change its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// The built-in trainer: faults change weights by rounding only.
    Rounding,
    /// The built-in trainer with slices: weights and losses are equal bit for bit.
    BitForBit,
    /// A script that joins: faults change weights by rounding only.
    Script,
}

/// Whether the test trains the transformer.
fn is_gpt2() -> bool {
    std::env::var("ROUNDHOUSE_CHAOS_MODEL").is_ok_and(|model| model == "gpt2")
}

fn wanted(workers: u32, steps: u64, promise: Promise) -> anyhow::Result<Value> {
    let mut wanted = if promise == Promise::Script {
        python::job(workers, steps)?
    } else {
        job(workers, steps)
    };
    if is_gpt2() {
        let trainer = &mut wanted["spec"]["trainer"];
        trainer["model"] = json!({
            "name": "gpt2", "layers": 1, "heads": 2, "width": 32, "context": 16, "vocabulary": 64, "dropout": 0.1,
        });
        trainer["data"] =
            json!({"format": "tokens", "train": "train.bin", "tokens": {"context": 16}});
        trainer["optimizer"] = json!({"name": "adamw", "learningRate": 0.001});
        trainer["globalBatchSize"] = 8.into();
    }
    if promise == Promise::BitForBit {
        wanted["spec"]["trainer"]["slices"] = SLICES.into();
    }
    wanted["spec"]["checkpoint"] =
        json!({"volume": {"hostPath": {"path": "/srv"}}, "everySteps": 50});
    Ok(wanted)
}

/// The trainer with its data: the digits, or random tokens in `directory` for the transformer.
fn program(directory: &Path) -> anyhow::Result<Program> {
    let program = Program::built_in()?;
    if !is_gpt2() {
        return Ok(program);
    }
    let tokens = (0..4_000_u32).map(|place| u16::try_from(place * place % 61));
    let tokens: Vec<u16> = tokens.collect::<Result<_, _>>()?;
    let bytes: Vec<u8> = tokens.into_iter().flat_map(u16::to_le_bytes).collect();
    std::fs::write(directory.join("train.bin"), bytes)?;
    Ok(Program {
        data: directory.to_owned(),
        ..program
    })
}

#[test]
fn hundred_faults_change_weights_by_rounding_only() {
    if !is_gpt2() {
        survive(Promise::Rounding).unwrap();
    }
}

#[test]
fn hundred_faults_with_slices_change_no_bit() {
    survive(Promise::BitForBit).unwrap();
}

#[test]
#[ignore = "needs PyTorch: tests/run/python-local"]
fn hundred_faults_of_a_script_change_weights_by_rounding() {
    survive(Promise::Script).unwrap();
}

fn survive(promise: Promise) -> anyhow::Result<()> {
    let seed = variable("ROUNDHOUSE_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    let events = variable("ROUNDHOUSE_CHAOS_EVENTS").unwrap_or(EVENTS);
    let steps_per_event = match promise {
        Promise::Rounding | Promise::BitForBit => STEPS_PER_EVENT,
        Promise::Script => STEPS_PER_EVENT_OF_SCRIPT,
    };
    let steps = events * steps_per_event;
    // A hundred events take about two minutes.
    let patience = Duration::from_secs(300 + 2 * events);
    println!("ROUNDHOUSE_CHAOS_SEED={seed}");
    let directory = tempfile::tempdir()?;
    let program = program(directory.path())?;
    let alone = wanted(1, steps, promise)?;
    let mut undisturbed = LocalRun::start_program(program.clone(), &alone, &[])?;
    assert!(undisturbed.end_within(patience)?.success());

    let mut wanted = wanted(3, steps, promise)?;
    wanted["spec"]["elastic"]["joinWindowSeconds"] = 0.into();
    wanted["spec"]["failurePolicy"] = json!({"backoffLimit": 10_000});
    let run = LocalRun::start_program(program, &wanted, &VARIABLES)?;
    let mut chaos = Chaos::of(run, seed);
    chaos.run.slow_down(PAUSE_MILLIS)?;
    let started = Instant::now();
    chaos.run.wait_for("steps", |run| run.step() > 5)?;
    while chaos.total() < events {
        let happened = chaos.inject();
        let pause = Duration::from_millis(chaos.rng.u64(20..400));
        chaos.pause(pause);
        if happened && chaos.total().is_multiple_of(EVENTS_PER_CHECK) {
            let before = chaos.run.step();
            println!(
                "{} events, step {before}, {:.0?}",
                chaos.total(),
                started.elapsed()
            );
            if before > steps / 2 {
                // On this machine workers prepare for longer than they train.
                chaos.run.slow_down(10 * PAUSE_MILLIS)?;
            }
            chaos.pause(Duration::from_secs(4));
            chaos
                .run
                .wait_for("progress", |run| run.step() > before)
                .with_context(|| format!("seed {seed}"))?;
        }
    }
    let step = chaos.run.step();
    println!(
        "{} in {:.0?}, at step {step}",
        chaos.counts(),
        started.elapsed()
    );
    assert!(step < steps, "all events must find the job training");
    chaos.pause(Duration::from_secs(4));
    chaos
        .run
        .edit(|spec| spec["workers"] = json!({"replicas": 2, "minReplicas": 1}))?;
    chaos.run.slow_down(0)?;
    let status = chaos
        .run
        .end_within(patience)
        .with_context(|| format!("seed {seed}"))?;
    assert!(status.success(), "seed {seed}\n{}", chaos.run.output());
    let audit = chaos.run.audit()?;
    println!("{audit}");
    if promise == Promise::BitForBit {
        println!("{}", chaos.run.compare(&undisturbed)?);
    }
    let (expected, weights) = match promise {
        Promise::Rounding | Promise::BitForBit => (undisturbed.weights()?, chaos.run.weights()?),
        Promise::Script => (
            undisturbed.result(python::WEIGHTS)?,
            chaos.run.result(python::WEIGHTS)?,
        ),
    };
    let apart = difference(&expected, &weights)?;
    println!("weights differ by {apart:e} after {steps} steps");
    let tolerance = match promise {
        Promise::Rounding => TOLERANCE * (steps / 100) as f32,
        Promise::Script => TOLERANCE_OF_SCRIPT * (steps / 100) as f32,
        Promise::BitForBit => 0.0,
    };
    assert!(
        apart <= tolerance,
        "seed {seed}: {apart:e} is above {tolerance:e}"
    );
    Ok(())
}
