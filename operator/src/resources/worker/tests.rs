use clap::Parser;
use roundhouse_planner::{ValidatedJob, validate};
use serde_json::{Value, json};

use super::*;

fn job(template: &Value) -> ValidatedJob {
    let job = json!({
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "digits", "namespace": "ml", "uid": "u-1"},
        "spec": {
            "workers": {"replicas": 2, "template": template},
            "trainer": {
                "model": {"name": "mlp"},
                "data": {"format": "idx", "volume": {"configMap": {"name": "digits-data"}}},
                "globalBatchSize": 64, "epochs": 1,
            },
        },
    });
    validate(&serde_json::from_value(job).unwrap()).unwrap()
}

#[allow(clippy::needless_pass_by_value)]
fn built(template: Value) -> Value {
    pod_of(&job(&template))
}

fn pod_of(job: &ValidatedJob) -> Value {
    let settings = Settings::parse_from(["roundhouse-operator", "--trainer-image", "trainer:1"]);
    serde_json::to_value(build(job, &settings, 1, 2).unwrap()).unwrap()
}

/// A pod in restart mode, with a container and a pod's security context of the user's.
#[allow(clippy::needless_pass_by_value)]
fn script(container: Value) -> Value {
    let mut trainer = json!({
        "name": "trainer", "image": "pytorch:2", "command": ["python"], "args": ["train.py", "--lr=1"],
    });
    let trainer_map = trainer.as_object_mut().unwrap();
    trainer_map.extend(container.as_object().unwrap().clone());
    let job = json!({
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "gpt", "namespace": "ml", "uid": "u-1"},
        "spec": {
            "elastic": {"mode": "Restart", "leaveGraceSeconds": 60},
            "stallTimeoutSeconds": 300,
            "workers": {"replicas": 2, "template": {"spec": {
                "initContainers": [{"name": "download", "image": "tool:1"}],
                "containers": [trainer],
            }}},
        },
    });
    pod_of(&validate(&serde_json::from_value(job).unwrap()).unwrap())
}

fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let all = container["env"].as_array().unwrap();
    all.iter().find(|variable| variable["name"] == name)?["value"].as_str()
}

#[test]
fn the_pod_bears_its_name_labels_and_owner() {
    let pod = built(json!({"metadata": {"labels": {"team": "a"}}}));
    let meta = &pod["metadata"];
    assert_eq!(meta["name"], "digits-worker-1-2");
    assert_eq!(meta["labels"]["team"], "a");
    assert_eq!(meta["labels"]["roundhouse.dev/worker-index"], "1");
    assert_eq!(meta["labels"]["roundhouse.dev/job-uid"], "u-1");
    assert_eq!(meta["ownerReferences"][0]["uid"], "u-1");
    assert_eq!(pod["spec"]["hostname"], "digits-worker-1");
    assert_eq!(pod["spec"]["subdomain"], "digits");
    let config = meta["annotations"]["roundhouse.dev/trainer-config"]
        .as_str()
        .unwrap();
    assert!(config.contains("\"globalBatchSize\":64"), "{config}");
}

#[test]
fn the_pod_is_admitted_under_the_restricted_standard() {
    let spec = &built(json!({}))["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(
        spec["securityContext"]["seccompProfile"]["type"],
        "RuntimeDefault"
    );
    let security = &spec["containers"][0]["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
}

#[test]
fn the_templates_word_counts_for_image_user_and_resources() {
    let spec = &built(json!({"spec": {
        "securityContext": {"runAsUser": 7},
        "containers": [
            {"name": "side", "image": "side:1"},
            {"name": "trainer", "image": "mine:1", "resources": {"limits": {"nvidia.com/gpu": 2}},
             "env": [{"name": "A", "value": "b"}]},
        ],
    }}))["spec"];
    assert_eq!(spec["securityContext"]["runAsUser"], 7);
    assert!(spec["containers"][0].get("command").is_none());
    let trainer = &spec["containers"][1];
    assert_eq!(trainer["image"], "mine:1");
    assert_eq!(trainer["env"][0]["name"], "A");
    let env = trainer["env"].as_array().unwrap();
    let procs = env
        .iter()
        .find(|v| v["name"] == "ROUNDHOUSE_PROCS_PER_WORKER")
        .unwrap();
    assert_eq!(procs["value"], "2");
}

#[test]
fn without_a_template_the_operators_image_runs_under_the_agent() {
    let spec = &built(json!({}))["spec"];
    let trainer = &spec["containers"][0];
    assert_eq!(trainer["image"], "trainer:1");
    assert_eq!(trainer["command"], json!(["roundhouse-agent"]));
    let mounts = trainer["volumeMounts"].as_array().unwrap();
    let data = mounts
        .iter()
        .find(|mount| mount["mountPath"] == "/data")
        .unwrap();
    assert_eq!(data["readOnly"], true);
    for mount in mounts {
        let volumes = spec["volumes"].as_array().unwrap();
        assert!(
            volumes.iter().any(|volume| volume["name"] == mount["name"]),
            "{mount}"
        );
    }
}

#[test]
fn the_agent_is_brought_to_somebody_elses_image_and_runs_its_command() {
    let pod = script(json!({}));
    let spec = &pod["spec"];
    let installer = &spec["initContainers"][0];
    assert_eq!(installer["image"], "trainer:1");
    assert_eq!(installer["command"], json!(["roundhouse-agent"]));
    assert_eq!(installer["args"], json!(["install", "/roundhouse"]));
    assert_eq!(installer["volumeMounts"][0]["name"], "roundhouse-agent");
    assert_eq!(spec["initContainers"][1]["name"], "download");

    let trainer = &spec["containers"][0];
    assert_eq!(trainer["image"], "pytorch:2");
    assert_eq!(trainer["command"], json!(["/roundhouse/roundhouse-agent"]));
    assert_eq!(
        trainer["args"],
        json!(["--", "python", "train.py", "--lr=1"])
    );
    let mounts = trainer["volumeMounts"].as_array().unwrap();
    let agent = mounts
        .iter()
        .find(|mount| mount["mountPath"] == "/roundhouse");
    assert_eq!(agent.unwrap()["readOnly"], true);
    assert!(
        mounts.iter().all(|mount| mount["mountPath"] != "/tmp"),
        "{mounts:?}"
    );
    for (name, expected) in [
        ("ROUNDHOUSE_MODE", Some("Restart")),
        ("ROUNDHOUSE_GRACE_SECONDS", Some("60")),
        ("ROUNDHOUSE_COLLATERAL_WINDOW_SECONDS", Some("5")),
        ("ROUNDHOUSE_STALL_TIMEOUT_SECONDS", Some("300")),
        ("ROUNDHOUSE_TRAINER_CONFIG_FILE", None),
    ] {
        assert_eq!(variable(trainer, name), expected, "{name}");
    }
    assert_eq!(spec["terminationGracePeriodSeconds"], 65);
    assert!(
        pod["metadata"]["annotations"]
            .get("roundhouse.dev/trainer-config")
            .is_none()
    );
}

#[test]
fn somebody_elses_image_keeps_its_user_and_is_admitted_under_the_restricted_standard() {
    let spec = &script(json!({}))["spec"];
    let pod = &spec["securityContext"];
    assert_eq!(pod["runAsNonRoot"], true);
    assert_eq!(pod["seccompProfile"]["type"], "RuntimeDefault");
    assert!(
        pod.get("runAsUser").is_none() && pod.get("fsGroup").is_none(),
        "{pod}"
    );
    for container in [&spec["initContainers"][0], &spec["containers"][0]] {
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
    }
    let theirs = &spec["containers"][0]["securityContext"];
    assert!(theirs.get("readOnlyRootFilesystem").is_none(), "{theirs}");
}

#[test]
fn a_mount_of_the_template_stands_where_ours_would() {
    let shm = json!([{"name": "large", "mountPath": "/dev/shm"}]);
    let spec = &script(json!({"volumeMounts": shm}))["spec"];
    let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
    let shm = mounts
        .iter()
        .filter(|mount| mount["mountPath"] == "/dev/shm");
    assert_eq!(
        shm.map(|mount| &mount["name"]).collect::<Vec<_>>(),
        ["large"]
    );
}
