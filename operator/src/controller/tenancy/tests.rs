use std::collections::BTreeMap;

use clap::Parser;
use kube::runtime::reflector::store;
use kube::runtime::watcher::Event;
use roundhouse_planner::testing::raw_job;
use roundhouse_planner::{RejectionReason, validate};
use serde_json::{Value, json};

use super::*;
use crate::memory::testing::memories;

/// A job of this name that was created at this minute, with this status.
fn job(name: &str, minute: u32, status: &Value) -> TrainingJob {
    let mut job = raw_job(1);
    job.metadata.name = Some(name.to_owned());
    job.metadata.uid = Some(name.to_owned());
    let created = format!("2026-01-01T00:{minute:02}:00Z");
    job.metadata.creation_timestamp = serde_json::from_value(json!(created)).unwrap();
    job.status = serde_json::from_value(status.clone()).unwrap();
    job
}

fn condition(kind: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": "It", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// A policy with one place in each namespace, and these jobs.
fn one_place(jobs: &[TrainingJob]) -> Policies {
    let policies = Policies {
        policy: file::parse("maxJobsPerNamespace: 1").unwrap(),
        ..Policies::default()
    };
    let (reader, mut writer) = store();
    for job in jobs {
        let job = LenientJob::of(job.clone()).unwrap();
        writer.apply_watcher_event(&Event::Apply(job));
    }
    policies.set_jobs(reader);
    policies
}

#[test]
fn running_jobs_keep_their_places_in_a_full_namespace() {
    let none = json!({});
    let running =
        json!({"startTime": "2026-01-01T01:00:00Z", "conditions": [condition("Accepted")]});
    let ended =
        json!({"startTime": "2026-01-01T01:00:00Z", "conditions": [condition("Succeeded")]});
    let first = job("first", 1, &none);
    let second = job("second", 2, &none);
    let running = job("running", 3, &running);
    let ended = job("ended", 0, &ended);
    let mut suspended = job("suspended", 0, &none);
    suspended.spec.suspend = true;
    let mut elsewhere = job("elsewhere", 0, &none);
    elsewhere.metadata.namespace = Some("other".to_owned());
    let mut theirs = job("theirs", 0, &none);
    theirs.spec.managed_by = "another.controller".to_owned();
    let refused = |reason: &str| {
        let accepted = json!({"status": "False", "reason": reason, "message": ""});
        let mut condition = condition("Accepted");
        condition
            .as_object_mut()
            .unwrap()
            .extend(accepted.as_object().unwrap().clone());
        job("refused", 0, &json!({"conditions": [condition]}))
    };
    let waits = |job: &TrainingJob, jobs: &[&TrainingJob]| {
        let jobs: Vec<TrainingJob> = jobs.iter().copied().cloned().collect();
        let refused = one_place(&jobs).refuse(job, &validate(job).unwrap(), &memories(&[]));
        let reason = refused.map(|refused| refused.reason);
        assert!(reason.is_none_or(|it| it == RejectionReason::TooManyJobs));
        reason.is_some()
    };
    let others = [&first, &second, &ended, &suspended, &elsewhere, &theirs];
    assert!(!waits(&first, &others), "the oldest has the place");
    assert!(waits(&second, &others));
    assert!(!waits(&suspended, &others), "it runs nothing");
    let mut forbidden = serde_json::to_value(refused("ForbiddenByPolicy")).unwrap();
    let privileged = json!({"name": "trainer", "securityContext": {"privileged": true}});
    forbidden["spec"]["workers"]["template"] = json!({"spec": {"containers": [privileged]}});
    let forbidden = serde_json::from_value(forbidden).unwrap();
    assert!(!waits(&second, &[&second, &forbidden]), "it cannot begin");
    assert!(
        waits(&second, &[&second, &refused("TooManyJobs")]),
        "it is older"
    );
    let stale = refused("ForbiddenByPolicy");
    assert!(waits(&second, &[&second, &stale]), "it is allowed by now");
    let with_one_that_runs = [&first, &second, &running];
    assert!(waits(&first, &with_one_that_runs));
    assert!(!waits(&running, &with_one_that_runs));
}

#[test]
fn job_waits_for_the_labels_of_its_namespace() {
    let policies = Policies {
        policy: file::parse("namespaces: [{selector: {a: b}, maxWorkersPerJob: 1}]").unwrap(),
        ..Policies::default()
    };
    let new = job("new", 0, &json!({}));
    assert!(!policies.can_judge(&new));
    let running = job("running", 0, &json!({"startTime": "2026-01-01T01:00:00Z"}));
    assert!(policies.can_judge(&running), "it is managed all the same");
    assert!(one_place(&[]).can_judge(&new), "labels do not matter");
    let namespace = ("ml".to_owned(), BTreeMap::new());
    policies.namespaces.take(Event::Apply(namespace));
    assert!(policies.can_judge(&new));
}

#[test]
fn unusable_policy_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    let error = |path| Policies::read(Some(path)).err().unwrap().to_string();
    assert!(error(&file).contains("policy.yaml cannot be read"));
    std::fs::write(&file, "allow: {privileged: 7}").unwrap();
    let words = error(&file);
    assert!(words.contains("policy.yaml: allow.privileged: "), "{words}");
    std::fs::write(&file, "namespaces: [{selector: {a: b}}]").unwrap();
    assert!(Policies::read(Some(&file)).unwrap().reads_namespaces());
    assert!(!Policies::default().reads_namespaces());
}

#[test]
fn restarted_operator_keeps_the_policy_it_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    std::fs::write(&file, "allow: {capabilites: [IPC_LOCK]}").unwrap();
    let file = format!("--policy-file={}", file.display());
    let of = |more: &[&str]| {
        let arguments = [&["roundhouse-operator", &*file], more].concat();
        Policies::of_settings(&Settings::parse_from(arguments))
    };
    assert!(of(&[]).is_err(), "the first start says what is wrong");
    let kept = of(&["--policy-as-read=maxWorkersPerJob: 7"]).unwrap();
    assert_eq!(kept.policy.default.max_workers_per_job, 7);
}
