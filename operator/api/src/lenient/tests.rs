use crate::{CleanPodPolicy, ConditionType, TrainingJobStatus};

use super::*;

/// A readable job, with these values at these JSON pointers.
fn job(changes: &[(&str, Value)]) -> Value {
    let mut object = json!({
        "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": "digits", "namespace": "ml", "uid": "u"},
        "spec": {
            "managedBy": "roundhouse.dev/operator",
            "suspend": true,
            "cleanPodPolicy": "All",
            "workers": {"replicas": 2, "minReplicas": 1, "template": {"spec": {"containers": []}}},
            "elastic": {"mode": "InProcess", "joinWindowSeconds": 7},
            "failurePolicy": {"rules": [
                {"action": "Count", "onReasons": ["Evicted"]},
                {"action": "Ignore", "onReasons": ["OOMKilled"]},
            ]},
            "trainer": {
                "model": {"name": "mlp"}, "data": {"format": "idx"}, "globalBatchSize": 8, "epochs": 1,
            },
        },
        "status": {"replicas": 2, "workers": {"wanted": 2, "ready": 2, "active": 2, "summary": "2/2"}},
    });
    for (pointer, value) in changes {
        let (parent, last) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[last] = value.clone();
    }
    object
}

fn read(changes: &[(&str, Value)]) -> LenientJob {
    serde_json::from_str(&job(changes).to_string()).unwrap()
}

#[test]
fn readable_job_is_read_completely() {
    let read = read(&[]);
    assert_eq!(read.unreadable, None);
    let whole = read.whole().unwrap();
    assert_eq!(whole, serde_json::from_value(job(&[])).unwrap());
    assert!(read.job.spec.workers.template.is_none(), "kept as JSON");
}

#[test]
fn unreadable_parts_are_named_and_left_out() {
    let cases = [
        (
            "/spec/cleanPodPolicy",
            json!("Later"),
            "spec.cleanPodPolicy",
        ),
        ("/spec/elastic/mode", json!("Sharded"), "spec.elastic.mode"),
        ("/spec/networkPolicy", json!("Mesh"), "spec.networkPolicy"),
        (
            "/spec/failurePolicy/rules/0/action",
            json!("Retry"),
            "spec.failurePolicy.rules[0].action",
        ),
        (
            "/spec/trainer/model/name",
            json!("mamba"),
            "spec.trainer.model.name",
        ),
        (
            "/spec/workers/template",
            json!("a"),
            "spec.workers.template",
        ),
        (
            "/spec/workers/replicas",
            json!("two"),
            "spec.workers.replicas",
        ),
        ("/spec/workers", json!({}), "spec.workers"),
        (
            "/spec/activeDeadlineSeconds",
            json!(-1),
            "spec.activeDeadlineSeconds",
        ),
        ("/status/replicas", json!("two"), "status.replicas"),
    ];
    for (pointer, value, field) in cases {
        let LenientJob {
            job, unreadable, ..
        } = read(&[(pointer, value)]);
        assert_eq!(unreadable.unwrap().field, field);
        assert!(job.spec.suspend, "{field}");
        assert_eq!(job.spec.managed_by, "roundhouse.dev/operator", "{field}");
        let wanted = |status: TrainingJobStatus| status.workers.unwrap().wanted;
        assert_eq!(job.status.map(wanted), Some(2), "{field}");
        let is_whole = job.spec.elastic.join_window_seconds == 7;
        assert!(is_whole, "{field}: the rest of the spec");
    }
}

#[test]
fn only_the_unreadable_part_is_lost() {
    let rules = [
        ("/spec/failurePolicy/rules/0/action", json!("Retry")),
        ("/spec/cleanPodPolicy", json!("Later")),
    ];
    let spec = read(&rules).job.spec;
    assert_eq!(spec.failure_policy.rules.len(), 1, "the other rule");
    assert_eq!(spec.clean_pod_policy, CleanPodPolicy::default());
    assert_eq!(spec.workers.replicas, 2);
    let spec = read(&[("/spec/trainer/model/name", json!("mamba"))])
        .job
        .spec;
    assert_eq!((spec.trainer, spec.workers.replicas), (None, 2));
}

#[test]
fn job_with_unreadable_manager_is_not_managed() {
    let job = read(&[("/spec/managedBy", json!(["a"]))]).job;
    assert_ne!(
        job.spec.managed_by,
        roundhouse_contract::labels::DEFAULT_MANAGER
    );
}

#[test]
fn many_unreadable_parts_remove_whole_fields() {
    let many: Vec<Value> = (0..100).map(|_| json!({"action": "Retry"})).collect();
    let conditions = json!([
        {"type": "Succeeded", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": 5},
    ]);
    let LenientJob {
        job, unreadable, ..
    } = read(&[
        ("/spec/failurePolicy/rules", json!(many)),
        ("/status/conditions", conditions),
        ("/status/startTime", json!("yesterday")),
    ]);
    assert!(unreadable.is_some() && job.spec.suspend);
    assert_eq!(job.spec.clean_pod_policy, CleanPodPolicy::All);
    assert_eq!(job.metadata.uid.as_deref(), Some("u"));
    assert_eq!(job.spec.workers.replicas, 2);
    assert_eq!(job.spec.elastic.join_window_seconds, 7);
    let status = job.status.unwrap();
    assert_eq!(status.workers.as_ref().map(|it| it.wanted), Some(2));
    assert!(status.is_true(ConditionType::Succeeded) && status.start_time.is_none());
}

#[test]
fn metadata_and_status_survive_an_invalid_spec() {
    let LenientJob {
        job, unreadable, ..
    } = read(&[("/spec", json!("text"))]);
    assert_eq!(unreadable.unwrap().field, "spec");
    assert!(!job.spec.suspend);
    assert_eq!(job.status.unwrap().replicas, 2);
}

#[test]
fn unreadable_message_names_field_and_advice() {
    let part = read(&[("/spec/elastic/mode", json!("Sharded"))]).unreadable;
    let Unreadable { field, message } = part.unwrap();
    let message = format!("{field}: {message}");
    for words in ["spec.elastic.mode: ", "Sharded", "upgrade"] {
        assert!(message.contains(words), "{message}");
    }
}

/// A large job: its template, and the fields that manage it.
fn large(template: &Value) -> LenientJob {
    read(&[("/spec/workers/template", template.clone())])
}

fn volumes(num_volumes: usize, num_sources: usize) -> Value {
    let sources = vec![json!({}); num_sources];
    let volume = |at| json!({"name": format!("v{at}"), "projected": {"sources": sources}});
    let volumes: Vec<Value> = (0..num_volumes).map(volume).collect();
    json!({"spec": {"containers": [], "volumes": volumes}})
}

fn text(num_bytes: usize) -> Value {
    json!({"spec": {"containers": [{"name": "trainer", "args": ["x".repeat(num_bytes)]}]}})
}

#[test]
fn oversized_job_keeps_small_fields_and_gives_advice() {
    for (template, size) in [
        (volumes(470, 1_024), "1430 KiB"),
        (volumes(10, 1_000), "20"),
        (text(size::MAX_SPEC_BYTES), "257 KiB"),
    ] {
        let read = large(&template);
        assert!(read.whole().unwrap().spec.workers.template.is_none());
        let LenientJob {
            job, unreadable, ..
        } = read;
        let Unreadable { field, message } = unreadable.unwrap();
        assert_eq!(field, "spec");
        for words in [size, "at most 256 KiB and 16384 values", "ConfigMap"] {
            assert!(message.contains(words), "{message}");
        }
        assert!(job.spec.suspend && job.spec.trainer.is_some());
        assert_eq!(job.spec.workers.replicas, 2);
        assert_eq!(job.spec.workers.min_replicas, Some(1));
        assert_eq!(job.spec.clean_pod_policy, CleanPodPolicy::All);
        assert_eq!(job.metadata.uid.as_deref(), Some("u"));
        assert_eq!(job.status.unwrap().replicas, 2);
    }
}

#[test]
fn job_at_the_size_limit_is_read_completely() {
    for template in [text(size::MAX_SPEC_BYTES - 2_000), volumes(128, 60)] {
        let read = large(&template);
        assert_eq!(read.unreadable, None);
        assert!(read.whole().unwrap().spec.workers.template.is_some());
    }
}

#[test]
fn oversized_job_loses_only_large_fields() {
    let options = json!(vec![1; 20_000]);
    let read = read(&[("/spec/trainer/options", options)]);
    assert!(read.job.spec.trainer.is_none() && read.unreadable.is_some());
    assert!(read.whole().unwrap().spec.workers.template.is_some());
}

#[test]
fn unchanged_template_is_stored_once() {
    let known = read(&[]);
    let (mut same, mut other) = (read(&[]), large(&text(1)));
    same.share(&known);
    other.share(&known);
    let at = |job: &LenientJob| job.template.as_ref().map(|text| text.as_ptr());
    assert_eq!(at(&same), at(&known));
    assert_ne!(at(&other), at(&known));
}

#[test]
fn job_with_thousands_of_labels_keeps_spec_and_identity() {
    let with = |number: usize| {
        let labels: Map<String, Value> = (0..number)
            .map(|at| (format!("a{at}"), json!("")))
            .collect();
        read(&[
            ("/metadata/labels", json!(labels)),
            ("/metadata/finalizers", json!(["a/b"])),
        ])
    };
    assert_eq!(with(1_000).unreadable, None);
    let LenientJob {
        job, unreadable, ..
    } = with(60_000);
    let Unreadable { field, message } = unreadable.unwrap();
    assert_eq!(field, "metadata.labels");
    assert!(message.contains("60000"), "{message}");
    assert_eq!(job.metadata.labels, None);
    assert_eq!(job.metadata.name.as_deref(), Some("digits"));
    assert_eq!(job.metadata.finalizers, Some(vec!["a/b".to_owned()]));
    assert_eq!(job.spec.workers.replicas, 2);
}

#[test]
fn unusual_metadata_does_not_prevent_reading() {
    let entry = json!({"manager": "m", "operation": "Apply", "time": "9999-12-31T23:59:59Z"});
    for number in [1, 9, 1_000] {
        let LenientJob {
            job, unreadable, ..
        } = read(&[(
            "/metadata/managedFields",
            json!(vec![entry.clone(); number]),
        )]);
        assert_eq!(unreadable, None);
        assert_eq!(job.metadata.managed_fields, None);
        assert_eq!(job.spec.workers.replicas, 2);
    }
    let finalizers = json!(vec!["a/b"; 200_000]);
    let kept = read(&[("/metadata/finalizers", finalizers)]).job.metadata;
    assert!(kept.finalizers.unwrap().len() < 100);
}
