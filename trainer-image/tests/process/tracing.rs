//! A trace of steps on request, while training goes on.

use serde_json::{Value, json};

use crate::checkpoints::endless;
use crate::harness::Job;

/// How often an event is in a trace of so many steps of the first process.
fn counts(job: &Job, num_steps: u32) -> impl Fn(&str) -> usize {
    job.wait_for("steps", |status| status.step > 0);
    let trace: Value = serde_json::from_str(&job.trace(num_steps)).unwrap();
    let events = trace["traceEvents"].as_array().unwrap().clone();
    move |name| {
        let same = events.iter().filter(|event| event["name"] == name);
        same.count()
    }
}

/// An MLP with one hidden layer: two products in a forward pass, and as many in a backward pass.
const FORWARD: &str = "aten::addmm";
const BACKWARD: &str = "autograd::engine::evaluate_function: AddmmBackward0";

#[test]
fn a_trace_has_whole_steps_and_no_more_than_were_asked_for() {
    let mut config = endless();
    config["eval"] = json!({"everyEpochs": 0});
    let job = Job::train(&config, 2, 1);
    let num_of = counts(&job, 3);
    // Fewer if the machine is so slow that three steps take 5 s.
    let num_forward = num_of(FORWARD);
    assert!([2, 4, 6].contains(&num_forward), "{num_forward}");
    assert_eq!(num_of(BACKWARD), num_forward);
    job.wait_for_steps(10);
}

#[test]
fn a_trace_ends_before_an_evaluation() {
    let mut config = endless();
    // Fewer steps in an epoch than are asked for.
    config["globalBatchSize"] = json!(256);
    let job = Job::train(&config, 2, 1);
    let num_of = counts(&job, 20);
    let num_forward = num_of(FORWARD);
    assert!((2..40).contains(&num_forward), "{num_forward}");
    assert_eq!(num_of(BACKWARD), num_forward, "no pass of an evaluation");
}
