//! Processes of a worker that compute the same samples, each with a part of the weights.

use serde_json::json;

use super::jobs::{Jobs, assert_close, assert_models_train_as_one_process, models};
use super::{
    PROCESSES, REPLICAS, assert_equal_bits, change_mesh, completed, completed_without_repeats,
    kill_all_ranks,
};

#[test]
fn divided_tensors_train_what_one_process_does() {
    assert_models_train_as_one_process(&json!({"tensor": PROCESSES}));
}

/// With slices the weights are equal bit for bit for every number of replicas and every history.
#[test]
fn killed_process_with_divided_tensors_costs_no_bit() {
    let [mut model, ..] = models();
    // Each layer has collectives, which take most of the time.
    model["layers"] = 1.into();
    let jobs = Jobs::new(300, model, json!({"tensor": PROCESSES}));
    let undisturbed = completed(jobs.divided(1, true, "None", true));
    let mut run = jobs.divided(REPLICAS, true, "None", true);
    kill_all_ranks(&mut run, &["Column"], jobs.steps);
    let run = completed_without_repeats(run);
    assert_equal_bits(&undisturbed, &run, "after kills");
}

#[test]
fn checkpoint_of_divided_tensors_continues_with_any_number() {
    let [_, model, _] = models();
    let jobs = Jobs::new(60, model, json!({"tensor": PROCESSES}));
    let mut run = jobs.divided(2, true, "None", true);
    let changes = [
        (5, 3, json!({"tensor": 3})),
        (15, 1, json!({})),
        (25, 2, json!({"tensor": 2})),
        (35, 2, json!({"shard": "Zero3"})),
    ];
    change_mesh(&mut run, &changes);
    let run = completed_without_repeats(run);
    assert_close(&jobs.alone(true), &run, "after changes of the mesh");
}
