//! Pods of the user's own command: in restart mode, and of a script that joins.

use super::*;

/// A pod in restart mode, with the user's container and pod security context.
#[allow(clippy::needless_pass_by_value)]
fn script(container: Value) -> Value {
    of_mode("Restart", container)
}

#[allow(clippy::needless_pass_by_value)]
pub(super) fn of_mode(mode: &str, container: Value) -> Value {
    let job = raw(mode, container);
    pod_of(&validate(&serde_json::from_value(job).unwrap()).unwrap())
}

#[allow(clippy::needless_pass_by_value)]
pub(super) fn raw(mode: &str, container: Value) -> Value {
    let mut trainer = json!({
        "name": "trainer", "image": "pytorch:2", "command": ["python"], "args": ["train.py", "--lr=1"],
    });
    let trainer_map = trainer.as_object_mut().unwrap();
    trainer_map.extend(container.as_object().unwrap().clone());
    json!({
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "gpt", "namespace": "ml", "uid": "u-1"},
        "spec": {
            "elastic": {"mode": mode, "leaveGraceSeconds": 60},
            "checkpoint": {"volume": {"hostPath": {"path": "/srv/states"}}, "everySteps": 100},
            "stallTimeoutSeconds": 300,
            "workers": {"replicas": 2, "template": {"spec": {
                "initContainers": [{"name": "download", "image": "tool:1"}],
                "containers": [trainer],
            }}},
        },
    })
}

#[test]
fn installer_has_the_trainers_resources_without_devices() {
    let resources = json!({
        "requests": {"cpu": "300m", "memory": "256Mi"},
        "limits": {"memory": "256Mi", "nvidia.com/gpu": "8", "ephemeral-storage": "1Gi"},
    });
    let spec = &script(json!({"resources": resources}))["spec"];
    assert_eq!(
        spec["initContainers"][0]["resources"],
        json!({
            "requests": {"cpu": "300m", "memory": "256Mi"},
            "limits": {"memory": "256Mi", "ephemeral-storage": "1Gi"},
        })
    );
    let spec = &script(json!({}))["spec"];
    let installer = &spec["initContainers"][0];
    assert!(installer.get("resources").is_none(), "{installer}");
}

#[test]
fn template_port_keeps_its_name_if_ours_has_it_too() {
    let theirs = json!([{"containerPort": 8000, "name": "metrics"}, {"containerPort": 1, "name": "rendezvous"}]);
    let spec = &script(json!({"ports": theirs}))["spec"];
    assert_eq!(
        spec["containers"][0]["ports"],
        json!([
            {"containerPort": 8000, "name": "metrics"},
            {"containerPort": 1, "name": "rendezvous"},
            {"containerPort": 29500, "name": "roundhouse-rdzv"},
            {"containerPort": 9464, "name": "roundhouse-http"},
        ])
    );
    let spec = &script(json!({"ports": [{"containerPort": 8000}]}))["spec"];
    let ports = spec["containers"][0]["ports"].as_array().unwrap();
    let names = ports.iter().map(|port| port["name"].as_str());
    assert_eq!(
        names.collect::<Vec<_>>(),
        [None, Some("rendezvous"), Some("metrics")]
    );
}

fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let all = container["env"].as_array().unwrap();
    all.iter().find(|variable| variable["name"] == name)?["value"].as_str()
}

#[test]
fn agent_is_installed_into_any_image_and_runs_its_command() {
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
        ("ROUNDHOUSE_PEER_FAILURE_WINDOW_SECONDS", Some("5")),
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
fn script_with_read_only_root_gets_a_temporary_directory() {
    let read_only = json!({"readOnlyRootFilesystem": true});
    let theirs = json!([{"name": "scratch", "mountPath": "/tmp/"}]);
    for (container, expected) in [
        (
            json!({"securityContext": read_only}),
            &["roundhouse-tmp"][..],
        ),
        (
            json!({"securityContext": {"readOnlyRootFilesystem": false}}),
            &[],
        ),
        (
            json!({"securityContext": read_only, "volumeMounts": theirs}),
            &["scratch"],
        ),
    ] {
        for pod in [script(container.clone()), of_mode("InProcess", container)] {
            let spec = &pod["spec"];
            let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
            let at_tmp = mounts
                .iter()
                .filter(|mount| matches!(mount["mountPath"].as_str(), Some("/tmp" | "/tmp/")));
            let names: Vec<&str> = at_tmp
                .map(|mount| mount["name"].as_str().unwrap())
                .collect();
            assert_eq!(names, expected);
            let volumes = spec["volumes"].as_array().unwrap();
            let has_ours = volumes
                .iter()
                .any(|volume| volume["name"] == "roundhouse-tmp");
            assert_eq!(has_ours, expected == ["roundhouse-tmp"]);
        }
    }
}

#[test]
fn agent_supervises_a_joining_script_like_the_trainer() {
    let pod = of_mode("InProcess", json!({}));
    let spec = &pod["spec"];
    let installer = &spec["initContainers"][0];
    assert_eq!(installer["args"], json!(["install", "/roundhouse"]));
    let trainer = &spec["containers"][0];
    assert_eq!(trainer["command"], json!(["/roundhouse/roundhouse-agent"]));
    assert_eq!(
        trainer["args"],
        json!(["--", "python", "train.py", "--lr=1"])
    );
    for (name, expected) in [
        ("ROUNDHOUSE_MODE", None),
        ("ROUNDHOUSE_GRACE_SECONDS", None),
        ("ROUNDHOUSE_PEER_FAILURE_WINDOW_SECONDS", None),
        ("ROUNDHOUSE_TRAINER_CONFIG_FILE", None),
        ("ROUNDHOUSE_DATA_DIR", None),
        ("ROUNDHOUSE_STALL_TIMEOUT_SECONDS", Some("300")),
        ("ROUNDHOUSE_TERMINATION_GRACE_SECONDS", Some("30")),
        ("ROUNDHOUSE_CHECKPOINT_DIR", Some("/checkpoints/ml/gpt")),
        ("ROUNDHOUSE_CHECKPOINT_EVERY_STEPS", Some("100")),
        ("ROUNDHOUSE_JOB_UID", Some("u-1")),
    ] {
        assert_eq!(variable(trainer, name), expected, "{name}");
    }
    let user = &spec["securityContext"];
    assert!(user.get("runAsUser").is_none(), "the image's own: {user}");
    let podinfo = &spec["volumes"][0]["downwardAPI"]["items"];
    assert_eq!(podinfo.as_array().unwrap().len(), 1, "no configuration");
}

#[test]
fn user_image_keeps_its_user_and_meets_restricted_standard() {
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
fn template_mount_replaces_ours_at_its_path() {
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
