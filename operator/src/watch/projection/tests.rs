use jiff::Timestamp;
use roundhouse_api::FewEntries;
use roundhouse_contract::CopyRole;
use serde_json::{Value, json};

use super::*;

fn reduced(conditions: &Value, gates: &Value) -> Pod {
    let pod = json!({
        "metadata": {"name": "digits-worker-1-2"},
        "spec": {"nodeName": "n1", "containers": [], "readinessGates": gates},
        "status": {"phase": "Running", "conditions": conditions},
    });
    pod_of(pod)
}

fn pod_of(pod: Value) -> Pod {
    super::pod(&serde_json::from_value(pod).unwrap())
}

fn conditions(ready: &str, containers_ready: &str) -> Value {
    json!([
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": ready},
        {"type": "ContainersReady", "status": containers_ready},
    ])
}

#[test]
fn fields_of_other_clients_are_removed_from_a_job() {
    let mut meta: ObjectMeta = serde_json::from_value(json!({
        "name": "digits",
        "annotations": {LAST_APPLIED: "{}", "team": "vision"},
        "managedFields": [{"manager": "kubectl", "operation": "Apply"}],
    }))
    .unwrap();
    job(&mut meta);
    assert_eq!(meta.managed_fields, None);
    let annotations = meta.annotations.unwrap();
    assert_eq!(annotations.keys().collect::<Vec<_>>(), ["team"]);
}

#[test]
fn unready_pod_with_ready_containers_is_unreachable() {
    let cases = [
        ("the node answers", "True", "True", json!(null), false),
        ("a probe fails", "False", "False", json!(null), false),
        ("the node is lost", "False", "True", json!(null), true),
        (
            "a gate is closed",
            "False",
            "True",
            json!([{"conditionType": "g"}]),
            false,
        ),
    ];
    for (name, ready, containers_ready, gates, unreachable) in cases {
        let pod = reduced(&conditions(ready, containers_ready), &gates);
        assert_eq!(pod.unreachable, unreachable, "{name}");
    }
}

#[test]
fn readiness_follows_the_trainer_and_not_its_sidecars() {
    let cases = [
        ("both are", true, true, "True", "True", true),
        ("only the sidecar", false, true, "False", "False", false),
        ("only the trainer", true, false, "False", "False", true),
        ("its node is lost", true, true, "False", "True", false),
    ];
    for (name, trainer, sidecar, ready, containers_ready, expected) in cases {
        let container = |name: &str, ready: bool| {
            json!({
            "name": name, "ready": ready, "image": "i", "imageID": "i", "restartCount": 0})
        };
        let pod = pod_of(json!({
            "metadata": {"name": "digits-worker-1-2"},
            "status": {
                "phase": "Running", "conditions": conditions(ready, containers_ready),
                "containerStatuses": [container("proxy", sidecar), container("trainer", trainer)],
            },
        }));
        assert_eq!(pod.ready, expected, "{name}");
    }
}

#[test]
fn worker_whose_sidecar_cannot_start_is_not_ready() {
    let pod = pod_of(json!({
        "metadata": {"name": "digits-worker-1-2"},
        "status": {
            "phase": "Pending", "conditions": conditions("False", "False"),
            "containerStatuses": [
                {"name": "proxy", "ready": false, "image": "i", "imageID": "", "restartCount": 0,
                    "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
                {"name": "trainer", "ready": true, "image": "i", "imageID": "i", "restartCount": 0,
                    "state": {"running": {}}},
            ],
        },
    }));
    assert!(!pod.ready);
    assert_eq!(pod.container.waiting.unwrap().reason, "ImagePullBackOff");
}

#[test]
fn readiness_time_is_that_of_the_later_condition() {
    let at = |second: u32| format!("1970-01-01T00:00:0{second}Z");
    let cases = [
        ("both at once", Some(3), Some(3), Some(3)),
        ("the node came back", Some(5), Some(3), Some(5)),
        ("only the pod's", Some(5), None, Some(5)),
        ("none", None, None, None),
    ];
    for (name, ready, containers_ready, expected) in cases {
        let condition = |kind: &str, second: Option<u32>| json!({"type": kind, "status": "True", "lastTransitionTime": second.map(at)});
        let conditions = json!([
            condition("Ready", ready),
            condition("ContainersReady", containers_ready)
        ]);
        let pod = reduced(&conditions, &json!(null));
        let found = pod.ready_at.map(Timestamp::as_second);
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn only_conditions_that_not_every_pod_has_are_kept() {
    let pod = reduced(
        &json!([
            {"type": "Ready", "status": "True"},
            {"type": "DisruptionTarget", "status": "True"},
            {"type": "Strange", "status": "False"},
        ]),
        &json!(null),
    );
    assert_eq!(pod.conditions, ["DisruptionTarget"]);
    assert!(pod.disrupted);
}

#[test]
fn deleted_pod_shows_its_deadline() {
    let pod = pod_of(json!({
        "metadata": {"name": "a-1-2", "deletionTimestamp": "1970-01-01T00:00:30Z"},
    }));
    assert!(pod.deleting);
    assert_eq!(pod.gone_by.unwrap().as_second(), 30);
}

#[test]
fn pod_without_labels_is_identified_by_its_name() {
    let pod = pod_of(json!({"metadata": {"name": "digits-worker-7-3", "labels": {}}}));
    assert_eq!((pod.index, pod.attempt), (Some(7), 3));
}

#[test]
fn object_of_a_job_has_its_uid_as_controller_and_label() {
    let labels = json!({
        "app.kubernetes.io/managed-by": "roundhouse-operator", "roundhouse.dev/job-uid": "u-1"});
    let owner = |uid: &str| json!([{"apiVersion": "a/v1", "kind": "K", "name": "n", "uid": uid, "controller": true}]);
    let cases = [
        ("ours", labels.clone(), owner("u-1"), true),
        ("an earlier job's", labels.clone(), owner("u-0"), false),
        ("without controller", labels, json!([]), false),
        ("without labels", json!({}), owner("u-1"), false),
    ];
    for (name, labels, owners, expected) in cases {
        let meta = json!({"labels": labels, "ownerReferences": owners});
        let meta = serde_json::from_value(meta).unwrap();
        assert_eq!(is_child(&meta, "u-1"), expected, "{name}");
    }
}

#[test]
fn a_gated_pod_is_not_unschedulable() {
    let pod = |gates: Value| {
        pod_of(json!({
            "metadata": {"name": "digits-worker-0-0"},
            "spec": {"containers": [], "schedulingGates": gates},
            "status": {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "message": "blocked"},
            ]},
        }))
    };
    let gated = pod(json!([{"name": "kueue.x-k8s.io/admission"}]));
    assert_eq!(gated.gates, ["kueue.x-k8s.io/admission"]);
    assert_eq!(gated.unschedulable, None);
    let free = pod(json!(null));
    assert_eq!(free.unschedulable.as_deref(), Some("blocked"));
}

#[test]
fn newer_protocol_differs_from_no_membership() {
    let pod = |document: &str| {
        pod_of(json!({"metadata": {
            "name": "digits-worker-0-0",
            "annotations": {"roundhouse.dev/membership": document},
        }}))
    };
    let newer = pod(r#"{"protocol": 9, "place": "of another shape"}"#);
    assert_eq!((newer.newer_protocol, newer.membership), (Some(9), None));
    let broken = pod("{");
    assert_eq!((broken.newer_protocol, broken.membership), (None, None));
    let none = pod("");
    assert_eq!((none.newer_protocol, none.membership), (None, None));
}

#[test]
fn pair_of_copies_is_read_from_its_annotation() {
    let pod = |document: &str| {
        pod_of(json!({"metadata": {
            "name": "digits-worker-0-0",
            "annotations": {"roundhouse.dev/copy-pair": document},
        }}))
    };
    let pair = CopyPair {
        id: "a1".to_owned(),
        role: CopyRole::Holder,
        peer: "digits-worker-1-0".to_owned(),
        address: "10.0.0.2".to_owned(),
        generation: 3,
    };
    assert_eq!(pod(&pair.to_json().unwrap()).copies, Some(pair));
    assert_eq!(pod("").copies, None, "the end of a pair");
}

/// A tenant may give a pod thousands of other labels and annotations, of which most are dropped.
#[test]
fn everything_that_is_read_is_kept_beside_many_others() {
    let constants = include_str!("../../../contract/src/labels.rs");
    let values = constants.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("pub const ")?.split_once(": &str = \"")?;
        Some((name, value.trim_end_matches("\";")))
    });
    let is_read = |name: &str| {
        let used = format!("labels::{name})");
        include_str!("../projection.rs").contains(&used)
    };
    let read: Vec<&str> = values
        .filter(|(name, _)| is_read(name))
        .map(|(_, value)| value)
        .filter(|value| value.contains('/'))
        .collect();
    assert!(read.len() > 8, "{read:?}");
    for key in read {
        let others = (0..3_000).map(|at| format!(r#""a{at}": """#));
        let entries: Vec<String> = others.chain([format!(r#""{key}": "x""#)]).collect();
        let few: FewEntries = serde_json::from_str(&format!("{{{}}}", entries.join(","))).unwrap();
        assert!(few.kept.contains_key(key), "{key}");
    }
}

/// A trainer with this count of restarts and this state. Its last state is an end with exit code 9.
fn restarted(restarts: u32, state: &Value) -> Pod {
    pod_of(json!({
        "metadata": {"name": "digits-worker-1-0"},
        "status": {"phase": "Running", "containerStatuses": [{
            "name": "trainer", "ready": false, "image": "i", "imageID": "i", "restartCount": restarts,
            "state": state, "lastState": {"terminated": {"exitCode": 9, "reason": "Error"}},
        }]},
    }))
}

#[test]
fn waiting_container_shows_the_end_of_its_last_run() {
    let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
    let cases = [
        ("back-off", waiting("CrashLoopBackOff"), 3),
        ("no image", waiting("ImagePullBackOff"), 3),
        ("created, not started", json!({"waiting": {}}), 2),
        ("the next run has begun", json!({"running": {}}), 2),
    ];
    for (name, state, run) in cases {
        let pod = restarted(3, &state);
        let end = pod.container.termination.unwrap();
        assert_eq!((end.restarts, end.exit_code), (run, 9), "{name}");
    }
}

#[test]
fn only_a_running_container_has_a_start() {
    let at = "2026-01-01T00:00:02Z";
    let cases = [
        (json!({"running": {"startedAt": at}}), at.parse().ok()),
        (
            json!({"terminated": {"exitCode": 1, "startedAt": at}}),
            None,
        ),
        (json!({"waiting": {"reason": "CrashLoopBackOff"}}), None),
    ];
    for (state, started_at) in cases {
        assert_eq!(restarted(1, &state).container.started_at, started_at);
    }
}

/// A pod with these init containers, each with its count of restarts, its state and its last state,
/// and its trainer.
fn with_init(all: &[(&str, u32, Value, Value)], trainer: &Value) -> Pod {
    let status = |(name, restarts, state, last): &(&str, u32, Value, Value)| {
        json!({"name": name, "ready": false, "image": "i", "imageID": "", "restartCount": restarts,
            "state": state, "lastState": last})
    };
    let init: Vec<Value> = all.iter().map(status).collect();
    let own = ("trainer", 0, trainer.clone(), json!({}));
    pod_of(json!({
        "metadata": {"name": "digits-worker-1-0"},
        "status": {"phase": "Pending", "initContainerStatuses": init, "containerStatuses": [status(&own)]},
    }))
}

#[test]
fn trainer_waits_for_the_last_init_container_that_started() {
    let none = json!({});
    let runs = json!({"running": {}});
    let waits = |reason: &str| json!({"waiting": {"reason": reason}});
    let ended =
        |code: i32| json!({"terminated": {"exitCode": code, "reason": "Error", "message": "a\nb"}});
    let (turn, back_off) = (waits("PodInitializing"), waits("CrashLoopBackOff"));
    let first = |state: &Value, last: &Value| {
        let later = ("later", 0, turn.clone(), none.clone());
        with_init(&[("first", 2, state.clone(), last.clone()), later], &turn)
    };
    // Name of the init container, and the exit code of its failure, if it failed.
    let failed = |pod: &Pod| {
        let init = pod.initializing.as_deref();
        init.map(|init| {
            (
                init.name.clone(),
                init.failure.as_ref().map(|end| end.exit_code),
            )
        })
    };
    let cases = [
        ("has not started", first(&turn, &none), None),
        ("runs", first(&runs, &none), Some(None)),
        ("has failed", first(&ended(3), &none), Some(Some(3))),
        (
            "waits after a failure",
            first(&back_off, &ended(3)),
            Some(Some(3)),
        ),
        (
            "runs again after a failure",
            first(&runs, &ended(3)),
            Some(Some(3)),
        ),
        ("is done", first(&ended(0), &ended(3)), None),
        (
            "a sidecar that ends at once",
            first(&back_off, &ended(0)),
            Some(Some(0)),
        ),
    ];
    for (name, pod, expected) in cases {
        let expected = expected.map(|code| ("first".to_owned(), code));
        assert_eq!(failed(&pod), expected, "{name}");
    }
    let sidecar = ("sidecar", 9, runs.clone(), ended(1));
    let next = |state: &Value| [sidecar.clone(), ("next", 0, state.clone(), none.clone())];
    let pod = with_init(&next(&ended(4)), &turn);
    assert_eq!(failed(&pod), Some(("next".to_owned(), Some(4))));
    assert_eq!(failed(&with_init(&next(&ended(0)), &runs)), None);
    assert_eq!(
        failed(&with_init(&next(&ended(0)), &waits("ErrImagePull"))),
        None
    );
    let words = with_init(&next(&ended(4)), &turn).initializing.unwrap();
    assert_eq!(words.failure.unwrap().message.unwrap().message, "a\nb");
}
