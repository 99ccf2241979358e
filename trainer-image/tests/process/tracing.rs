//! A trace of steps on request, while training goes on.

use serde_json::Value;

use crate::checkpoints::endless;
use crate::harness::Job;

#[test]
fn a_trace_of_the_steps_that_were_asked_for_is_left_in_the_run_directory() {
    let job = Job::train(&endless(), 2, 1);
    job.wait_for("steps", |status| status.step > 0);
    let text = job.trace(3);
    let trace: Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let num_of = |name: &str| {
        let same = events.iter().filter(|event| event["name"] == name);
        same.count()
    };
    // An MLP with one hidden layer: two products in a forward pass.
    assert_eq!(num_of("aten::addmm"), 6, "{} events", events.len());
    job.wait_for_steps(10);
}
