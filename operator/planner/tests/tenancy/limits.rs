//! Lists, numbers of jobs and workers, and namespaces with their own limits.

use std::collections::BTreeMap;

use roundhouse_planner::tenancy::{Limits, OfNamespaces, Policy};
use roundhouse_planner::testing::raw_job;
use roundhouse_planner::{RejectionReason, ValidatedJob, validate};
use serde_json::{Value, json};

use crate::{allow, job, pod};

#[test]
fn listed_priority_classes_and_queues_exclude_others() {
    let class = |name: &str| pod(json!({"containers": [], "priorityClassName": name}));
    let classes = |entries: Value| allow(json!({ "priorityClasses": entries }));
    for (entries, name, is_allowed) in [
        (json!(["low", "batch-*"]), "low", true),
        (json!(["low", "batch-*"]), "batch-1", true),
        (json!(["low", "batch-*"]), "production", false),
        (json!([]), "low", false),
        (json!(["*"]), "system-node-critical", false),
        (json!(["system-*"]), "system-node-critical", true),
        (json!(["system-*"]), "low", false),
    ] {
        let refused = classes(entries.clone()).refuse(&class(name));
        assert_eq!(refused.is_none(), is_allowed, "{entries} {name}");
    }
    let mut job = pod(json!({"containers": []}));
    job.scheduling.queue_name = Some("production".to_owned());
    assert_eq!(Limits::default().refuse(&job), None);
    let refused = allow(json!({"queues": ["research"]})).refuse(&job).unwrap();
    let words = "spec.scheduling.queueName: production is not allowed by policy.allow.queues. ";
    assert!(refused.message.starts_with(words), "{}", refused.message);
    let key = "scheduling.volcano.sh/queue-name";
    let annotated = job_with_annotation(key, "production");
    let refused = allow(json!({"queues": ["research"]})).refuse(&annotated);
    let words = format!("spec.workers.template.metadata.annotations[{key}]: production");
    assert!(refused.unwrap().message.starts_with(&words));
}

fn job_with_annotation(key: &str, value: &str) -> ValidatedJob {
    job(json!({"metadata": {"annotations": {key: value}}, "spec": {"containers": []}}))
}

#[test]
fn many_findings_are_counted_and_not_all_listed() {
    let volumes: Vec<_> = (0..9)
        .map(|at| json!({"name": format!("v{at}"), "nfs": {"server": "s", "path": "/"}}))
        .collect();
    let job = pod(json!({"containers": [], "volumes": volumes}));
    let message = Limits::default().refuse(&job).unwrap().message;
    assert_eq!(message.matches("is not allowed").count(), 5);
    assert!(message.contains("; and 4 more. "), "{message}");
}

#[test]
fn workers_per_job_and_jobs_per_namespace_are_limited() {
    let limits: Limits =
        serde_json::from_value(json!({"maxWorkersPerJob": 1, "maxJobsPerNamespace": 2})).unwrap();
    let two = pod(json!({"containers": []}));
    let message = limits.refuse(&two).unwrap().message;
    let words = "spec.workers.replicas: 2 (at most 1) is not allowed by policy.maxWorkersPerJob";
    assert!(message.starts_with(words), "{message}");
    let mut spare = validate(&raw_job(1)).unwrap();
    assert_eq!(limits.refuse(&spare), None);
    spare.spares = 1;
    let message = limits.refuse(&spare).unwrap().message;
    let words = "spec.workers.replicas: 1 and 1 spare (at most 1) is not allowed";
    assert!(message.starts_with(words), "{message}");
    assert_eq!(limits.refuse_one_more(1), None);
    let third = limits.refuse_one_more(2).unwrap();
    assert_eq!(third.reason, RejectionReason::TooManyJobs);
    assert!(third.message.contains("policy.maxJobsPerNamespace is 2"));
    let last = limits.refuse_one_more(2_000);
    assert_eq!(
        last,
        Some(third),
        "the end of one job changes no other message"
    );
    assert_eq!(Limits::default().refuse(&two), None);
    assert_eq!(Limits::default().refuse_one_more(9_999), None);
}

#[test]
fn first_matching_namespace_entry_applies() {
    let of = |team: &str, limits: Value| OfNamespaces {
        selector: BTreeMap::from([("team".to_owned(), team.to_owned())]),
        limits: serde_json::from_value(limits).unwrap(),
    };
    let policy = Policy {
        default: Limits::default(),
        namespaces: vec![
            of("vision", json!({"maxWorkersPerJob": 1})),
            of("vision", json!({"maxWorkersPerJob": 2})),
            of("speech", json!({"maxWorkersPerJob": 3})),
        ],
    };
    let most = |labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(k, v)| (k.to_string(), v.to_string()));
        policy.limits(&labels.collect()).max_workers_per_job
    };
    assert_eq!(most(&[("team", "vision"), ("a", "b")]), 1);
    assert_eq!(most(&[("team", "speech")]), 3);
    assert_eq!(most(&[("a", "b")]), 0);
}
