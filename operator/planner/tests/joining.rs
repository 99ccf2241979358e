//! Scripts that join: a command of the user's own in mode `InProcess`, without the built-in trainer.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use roundhouse_api::{Checkpoint, TrainingJob};
use roundhouse_contract::{BestMetric, Mode, OnScale, ScaleBatch};
use roundhouse_planner::testing::{World, raw_joining_job, world_of};
use roundhouse_planner::{PlanReason, PodPhase, Program, validate};
use serde_json::json;

fn joining(workers: u32) -> World {
    world_of(&raw_joining_job(workers))
}

#[test]
fn a_command_without_the_trainer_runs_in_process_with_checkpoints() {
    let mut raw = raw_joining_job(2);
    raw.spec.checkpoint = Some(checkpoint());
    let job = validate(&raw).unwrap();
    assert!(matches!(job.program, Program::Joining { .. }));
    assert_eq!(job.program.mode(), Mode::InProcess);
    assert_eq!(job.program.own_command().unwrap(), ["python", "train.py"]);
    assert_eq!(job.grace, Duration::from_secs(30), "as the trainer's");
}

fn checkpoint() -> Checkpoint {
    serde_json::from_value(json!({"volume": {"hostPath": {"path": "/srv"}}})).unwrap()
}

#[test]
fn what_cannot_be_run_says_what_to_change() {
    type Change = fn(&mut TrainingJob);
    let table: [(&str, &str, Change); 5] = [
        ("spec.trainer", "calls roundhouse.join()", |job| {
            job.spec.workers.template = None;
        }),
        ("[0].image", "the image", |job| {
            job.spec.workers.template = template(json!({"name": "trainer", "command": ["python"]}));
        }),
        ("[0].command", "such as [python, train.py]", |job| {
            job.spec.workers.template = template(json!({"name": "trainer", "image": "pytorch:2"}));
        }),
        ("spec.checkpoint.best", "leave it out", |job| {
            let best = serde_json::from_value(json!({"metric": BestMetric::Loss})).unwrap();
            job.spec.checkpoint = Some(Checkpoint {
                best: Some(best),
                ..checkpoint()
            });
        }),
        ("spec.elastic.onScale", "leave out ScaleBatch", |job| {
            job.spec.elastic.on_scale = OnScale::ScaleBatch;
            let scale: ScaleBatch =
                serde_json::from_value(json!({"referenceReplicas": 2})).unwrap();
            job.spec.elastic.scale_batch = Some(scale);
        }),
    ];
    for (field, words, change) in table {
        let mut job = raw_joining_job(2);
        change(&mut job);
        let refused = validate(&job).unwrap_err();
        assert!(refused.field.ends_with(field), "{refused}");
        assert!(refused.message.contains(words), "{refused}");
    }
}

#[allow(clippy::needless_pass_by_value)]
fn template(container: serde_json::Value) -> Option<k8s_openapi::api::core::v1::PodTemplateSpec> {
    serde_json::from_value(json!({"spec": {"containers": [container]}})).unwrap()
}

#[test]
fn a_script_that_is_not_in_the_lobby_at_the_start_deadline_is_told_of_the_call_that_is_missing() {
    let mut world = joining(2);
    world.job.start_deadline = Some(Duration::from_secs(60));
    world.settle();
    world.prepared(0);
    world.prepared(1);
    world.observed.pods[1].ready = false;
    world.settle();
    let told = |world: &World| world.observed.status.front().unwrap().message.clone();
    assert!(told(&world).contains("1 of 2 workers ready; gpt-worker-1-0 is starting: its script"));
    world.seconds_pass(61);
    world.settle();
    assert_eq!(world.state(), "StartDeadlineExceeded");
    let words = told(&world);
    assert!(words.contains("roundhouse.join()"), "{words}");
}

#[test]
fn a_script_that_ends_without_joining_fails_the_job_at_once() {
    let mut world = joining(2);
    world.settle();
    world.prepared(0);
    world.ends(1, 64, 0);
    world.settle();
    assert_eq!(world.state(), "ConfigInvalid");
}

#[test]
fn the_job_succeeds_when_all_members_have_completed_however_long_the_last_one_takes() {
    let mut world = joining(2).training();
    world.ends(1, 0, 100);
    assert_eq!(world.settle().reason, PlanReason::Finishing);
    world.seconds_pass(3_600);
    assert_eq!(world.settle().reason, PlanReason::Finishing);
    world.ends(0, 0, 100);
    assert_eq!(world.settle().reason, PlanReason::Succeeded);
}

#[test]
fn a_worker_that_fails_after_its_last_step_brings_back_those_that_have_completed() {
    let mut world = joining(2).training();
    world.ends(1, 0, 100);
    world.settle();
    world.ends(0, 1, 100);
    world.settle();
    let names: Vec<_> = world.observed.pods.iter().map(|pod| &pod.name).collect();
    assert_eq!(names, ["gpt-worker-0-0", "gpt-worker-1-1"]);
    world.restarts(0);
    for at in 0..2 {
        world.prepared(at);
    }
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.generations(), [2, 2]);
}

#[test]
fn the_survivors_of_a_killed_worker_train_on_without_a_restart() {
    let mut world = joining(3);
    world.job.min_replicas = 2;
    let mut world = world.training();
    world.ends(1, 137, 40);
    world.settle();
    assert_eq!(world.generations(), [2, 1, 2]);
    let restarts = |at: usize| world.observed.pods[at].container.restarts;
    assert_eq!((restarts(0), restarts(2)), (0, 0));
    assert_eq!(world.observed.pods[0].phase, PodPhase::Running);
    assert_eq!(world.observed.status.incidents.total, 1);
}
