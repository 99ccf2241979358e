//! What the workers run: the built-in trainer, a script that joins, or a script that restarts.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use roundhouse_api::{Checkpoint, TrainingJob};
use roundhouse_contract::{
    BestMetric, Mode, OnScale, RateRule, ScaleBatch, WorkerProgram, WorkerSite,
};
use roundhouse_planner::testing::{raw_job, raw_joining_job, raw_script_job};
use roundhouse_planner::{Program, launch, validate};
use serde_json::json;

#[test]
fn command_without_trainer_runs_in_process() {
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
fn invalid_joining_script_is_refused_with_advice() {
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

/// What the agents of a job run.
fn program_of_agents(raw: &TrainingJob) -> WorkerProgram {
    let site = WorkerSite {
        address: None,
        rendezvous_port: 29_400,
        membership_file: "/membership".into(),
        replica_place_file: "/etc/roundhouse/replica".into(),
        run_dir: "/run".into(),
        trainer_config_file: "/config".into(),
        data_dir: "/data".into(),
        checkpoint_dir: "/checkpoints".into(),
        copies_dir: "/copies".into(),
        copy_pair_file: None,
        expected_device: None,
    };
    launch::environment(&validate(raw).unwrap(), 0, site).program
}

#[test]
fn agents_receive_whether_workers_are_sharded() {
    for (sharded, expected) in [(None, false), (Some(false), false), (Some(true), true)] {
        let mut raw = raw_joining_job(2);
        raw.spec.workers.sharded = sharded;
        let program = program_of_agents(&raw);
        assert_eq!(program, WorkerProgram::Joining { sharded: expected });
    }
}

#[test]
fn only_a_script_that_joins_can_be_sharded() {
    let built_in = (raw_job(2), "leave out spec.trainer");
    let restarting = (raw_script_job(2), "set the mode to InProcess");
    for (mut raw, advice) in [built_in, restarting] {
        raw.spec.workers.sharded = Some(false);
        validate(&raw).unwrap();
        raw.spec.workers.sharded = Some(true);
        let refused = validate(&raw).unwrap_err();
        assert_eq!(refused.field, "spec.workers.sharded");
        assert!(refused.message.contains(advice), "{refused}");
    }
}

#[test]
fn processes_that_divide_a_model_are_those_of_a_worker() {
    let gpt2 = json!({"name": "gpt2", "heads": 6});
    let switch = json!({"name": "switch", "numExperts": 6});
    for (model, parallel, field) in [
        (&gpt2, json!({"tensor": 2}), "tensor"),
        (&gpt2, json!({"pipeline": 2}), "pipeline"),
        (&switch, json!({"shard": "Zero3", "expert": 2}), "expert"),
    ] {
        for procs in [2, 3] {
            let mut raw = raw_job(2);
            raw.spec.workers.procs_per_worker = Some(procs);
            let trainer = raw.spec.trainer.as_mut().unwrap();
            trainer.model = serde_json::from_value(model.clone()).unwrap();
            let tokens = json!({"format": "tokens", "tokens": {"context": 8}});
            trainer.data = serde_json::from_value(tokens).unwrap();
            trainer.parallel = serde_json::from_value(parallel.clone()).unwrap();
            let validated = validate(&raw);
            if procs == 2 {
                assert!(validated.unwrap().program.trainer().is_some());
                continue;
            }
            let refused = validated.unwrap_err();
            assert_eq!(refused.field, format!("spec.trainer.parallel.{field}"));
            let advice = "set spec.workers.procsPerWorker to 2";
            assert!(refused.message.contains(advice), "{refused}");
        }
    }
}

#[allow(clippy::needless_pass_by_value)]
fn template(container: serde_json::Value) -> Option<k8s_openapi::api::core::v1::PodTemplateSpec> {
    serde_json::from_value(json!({"spec": {"containers": [container]}})).unwrap()
}

fn container(job: &mut TrainingJob) -> &mut Container {
    let template = job.spec.workers.template.as_mut().unwrap();
    &mut template.spec.as_mut().unwrap().containers[0]
}

#[test]
fn restart_mode_runs_the_template_command() {
    let job = validate(&raw_script_job(2)).unwrap();
    assert_eq!(job.program.mode(), Mode::Restart);
    let script = job.program.script().unwrap();
    assert_eq!(script.command, ["python", "train.py"]);
    assert_eq!(script.peer_failure_window, Duration::from_secs(5));
    assert_eq!(script.leave_grace, Duration::from_secs(30));
}

#[test]
fn invalid_restart_script_is_refused_with_advice() {
    type Change = fn(&mut TrainingJob);
    let in_template = "spec.workers.template.spec.containers";
    let table: [(&str, &str, Change); 5] = [
        ("spec.trainer", "leave it out", |job| {
            job.spec.trainer = raw_job(1).spec.trainer;
        }),
        ("spec.trainer", "spec.elastic.mode to Restart", |job| {
            job.spec.elastic.mode = Mode::InProcess;
            job.spec.workers.template = None;
        }),
        (in_template, "a container named trainer", |job| {
            job.spec.workers.template = None;
        }),
        ("[0].image", "the image", |job| container(job).image = None),
        ("[0].command", "such as [python, train.py]", |job| {
            container(job).command = None;
        }),
    ];
    for (field, words, change) in table {
        let mut job = raw_script_job(2);
        change(&mut job);
        let refused = validate(&job).unwrap_err();
        assert!(refused.field.ends_with(field), "{refused}");
        assert!(refused.message.contains(words), "{refused}");
    }
}

const SCALE: ScaleBatch = ScaleBatch {
    reference_replicas: 4,
    rule: RateRule::SquareRoot,
    warmup_steps: 10,
};

fn scaled(mut job: TrainingJob) -> TrainingJob {
    job.spec.elastic.on_scale = OnScale::ScaleBatch;
    job.spec.elastic.scale_batch = Some(SCALE);
    job
}

#[test]
fn scale_batch_is_in_the_trainer_configuration() {
    let job = validate(&scaled(raw_job(2))).unwrap();
    assert_eq!(job.program.trainer().unwrap().scale_batch, Some(SCALE));
    let job = validate(&raw_job(2)).unwrap();
    let text = serde_json::to_string(job.program.trainer().unwrap()).unwrap();
    assert!(!text.contains("scaleBatch"), "{text}");
}

#[test]
fn invalid_on_scale_is_refused_with_advice() {
    type Change = fn(&mut TrainingJob);
    let cases: [(&str, &str, Change); 5] = [
        ("spec.elastic.scaleBatch", "give referenceReplicas", |job| {
            job.spec.elastic.scale_batch = None;
        }),
        (
            "spec.elastic.scaleBatch",
            "set spec.elastic.onScale to ScaleBatch",
            |job| job.spec.elastic.on_scale = OnScale::KeepGlobalBatch,
        ),
        (
            "spec.elastic.scaleBatch.referenceReplicas",
            "must be at least 1",
            |job| {
                job.spec
                    .elastic
                    .scale_batch
                    .as_mut()
                    .unwrap()
                    .reference_replicas = 0;
            },
        ),
        ("spec.elastic.onScale", "built-in trainer", |job| {
            *job = scaled(raw_script_job(2));
        }),
        (
            "spec.trainer.scaleBatch",
            "give spec.elastic.scaleBatch",
            |job| job.spec.trainer.as_mut().unwrap().scale_batch = Some(SCALE),
        ),
    ];
    for (field, words, change) in cases {
        let mut job = scaled(raw_job(2));
        change(&mut job);
        let refused = validate(&job).unwrap_err();
        assert_eq!(refused.field, field);
        assert!(refused.message.contains(words), "{refused}");
    }
}
