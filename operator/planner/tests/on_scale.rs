//! What `elastic.onScale` and `elastic.scaleBatch` may say, and what the processes are told of it.
#![allow(clippy::unwrap_used)]

use roundhouse_api::TrainingJob;
use roundhouse_contract::{OnScale, RateRule, ScaleBatch};
use roundhouse_planner::testing::{raw_job, raw_script_job};
use roundhouse_planner::validate;

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
fn the_processes_read_in_their_configuration_how_the_batch_follows_the_workers() {
    let job = validate(&scaled(raw_job(2))).unwrap();
    assert_eq!(job.program.trainer().unwrap().scale_batch, Some(SCALE));
    let job = validate(&raw_job(2)).unwrap();
    let text = serde_json::to_string(job.program.trainer().unwrap()).unwrap();
    assert!(!text.contains("scaleBatch"), "{text}");
}

#[test]
fn what_cannot_be_meant_says_what_to_change() {
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
