//! `spec.scheduling` and the pod template.

use roundhouse_api::{Gang, TrainingJob};
use roundhouse_planner::testing::{raw_gang_job, raw_job};
use roundhouse_planner::validate;

#[test]
fn template_scheduler_takes_precedence() {
    let mut raw = raw_gang_job(1, Gang::Coscheduling);
    let scheduler = |raw: &TrainingJob| {
        let job = validate(raw).unwrap();
        job.template.spec.unwrap().scheduler_name
    };
    let default = "scheduler-plugins-scheduler";
    assert_eq!(scheduler(&raw).as_deref(), Some(default));
    let pod = raw.spec.workers.template.get_or_insert_default();
    let pod = pod.spec.get_or_insert_default();
    pod.scheduler_name = Some("default-scheduler".to_owned());
    assert_eq!(scheduler(&raw).as_deref(), Some("default-scheduler"));
}

#[test]
fn contradictory_scheduling_is_refused_with_advice() {
    type Change = fn(&mut TrainingJob);
    let cases: [(&str, &str, Change); 2] = [
        (
            "spec.scheduling.queueName",
            "set spec.scheduling.gang to Volcano",
            |job| job.spec.scheduling.queue_name = Some("research".to_owned()),
        ),
        (
            "spec.scheduling.priorityClassName",
            "spec.workers.template has another one",
            |job| {
                job.spec.scheduling.priority_class_name = Some("low".to_owned());
                let pod = job.spec.workers.template.get_or_insert_default();
                let pod = pod.spec.get_or_insert_default();
                pod.priority_class_name = Some("high".to_owned());
            },
        ),
    ];
    for (field, words, change) in cases {
        let mut job = raw_job(1);
        change(&mut job);
        let error = validate(&job).unwrap_err();
        assert_eq!(error.field, field);
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn default_scheduling_keeps_the_fingerprint() {
    let plain = validate(&raw_job(1)).unwrap().built_from;
    let with = |change: fn(&mut TrainingJob)| {
        let mut job = raw_job(1);
        change(&mut job);
        validate(&job).unwrap().built_from
    };
    assert_eq!(plain, "755651389d941d6c");
    let class = |job: &mut TrainingJob| {
        job.spec.scheduling.priority_class_name = Some("low".to_owned());
    };
    assert_ne!(with(class), plain, "it is in the pods");
}
