//! Processes of a worker that compute the same samples, each with some layers.

use roundhouse_tests::local::LocalRun;
use serde_json::json;

use super::jobs::{Jobs, assert_close, assert_models_train_as_one_process, models};
use super::{
    PAUSE_MILLIS, PROCESSES, REPLICAS, all_train, assert_equal_bits, change_mesh, completed,
    completed_without_repeats, kill_all_ranks,
};

#[test]
fn pipeline_trains_what_one_process_does() {
    assert_models_train_as_one_process(&json!({"pipeline": PROCESSES}));
}

/// With slices the weights are equal bit for bit for every number of replicas and every history.
#[test]
fn killed_stage_costs_no_step_and_no_bit() {
    let [model, ..] = models();
    let jobs = Jobs::new(300, model, json!({"pipeline": PROCESSES}));
    let undisturbed = completed(jobs.divided(1, true, "None", true));
    let mut run = jobs.divided(REPLICAS, true, "None", true);
    kill_all_ranks(&mut run, &["Backward"], jobs.steps);
    let run = completed_without_repeats(run);
    assert_equal_bits(&undisturbed, &run, "after kills");
}

/// The sum over the replicas fails in one process of a replica and may succeed in its sibling,
/// which must not wait for it.
#[test]
fn stage_killed_before_the_sum_restarts_no_other_replica() {
    let [model, ..] = models();
    let jobs = Jobs::new(200, model, json!({"pipeline": PROCESSES}));
    let mut run = jobs.divided(REPLICAS, false, "None", false);
    run.slow_down(PAUSE_MILLIS).unwrap();
    let mut generation = all_train(&mut run, 0);
    let ranks = |run: &LocalRun| {
        run.agents()
            .into_iter()
            .map(|it| it.ranks)
            .collect::<Vec<_>>()
    };
    for rank in [1, 2] {
        let before = ranks(&run);
        run.kill_at(rank, "Sum").unwrap();
        run.wait_for("the kill", LocalRun::has_killed).unwrap();
        generation = all_train(&mut run, generation);
        let after = ranks(&run);
        let stayed = before.iter().filter(|ranks| after.contains(ranks));
        assert_eq!(stayed.count(), 1, "{before:?}, {after:?}\n{}", run.output());
    }
    let run = completed_without_repeats(run);
    assert_close(&jobs.alone(false), &run, "after kills");
}

#[test]
fn checkpoint_of_a_pipeline_continues_with_any_number() {
    let [_, model, _] = models();
    let jobs = Jobs::new(60, model, json!({"pipeline": PROCESSES}));
    let mut run = jobs.divided(2, true, "None", true);
    let changes = [
        (5, 3, json!({"pipeline": 3})),
        (15, 1, json!({})),
        (25, 2, json!({"tensor": 2})),
        (35, 2, json!({"pipeline": 2})),
    ];
    change_mesh(&mut run, &changes);
    let run = completed_without_repeats(run);
    assert_close(&jobs.alone(true), &run, "after changes of the mesh");
}
