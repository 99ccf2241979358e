use kube::ResourceExt;
use roundhouse_planner::{ValidatedJob, validate};
use serde_json::{Value, json};

use super::*;

fn job(template: &Value) -> ValidatedJob {
    validate(&serde_json::from_value(raw(template)).unwrap()).unwrap()
}

fn raw(template: &Value) -> Value {
    json!({
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
    })
}

fn place<'a>(index: u32, attempt: u32) -> Place<'a> {
    Place {
        index,
        attempt,
        replica: None,
        gang: 0,
        avoid: &[],
        lost: &[],
        trainer_image: "trainer:1",
        pull_policy: "IfNotPresent",
        architecture: "amd64",
        fixed_users: true,
    }
}

#[allow(clippy::needless_pass_by_value)]
fn built(template: Value) -> Value {
    pod_of(&job(&template))
}

fn pod_of(job: &ValidatedJob) -> Value {
    serde_json::to_value(build(job, place(1, 2)).unwrap()).unwrap()
}

mod g20_security;
mod placement;
mod script;

#[test]
fn pod_has_its_name_labels_and_owner() {
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
fn kubelet_keeps_last_log_lines_of_failed_init_containers() {
    let spec = &built(json!({"spec": {"initContainers": [
        {"name": "download", "image": "a"},
        {"name": "mine", "image": "a", "terminationMessagePolicy": "File"},
    ]}}))["spec"];
    let init = &spec["initContainers"];
    let policy = "terminationMessagePolicy";
    assert_eq!(init[0][policy], "FallbackToLogsOnError");
    assert_eq!(init[1][policy], "File");
    assert_eq!(spec["containers"][0].get(policy), None);
}

#[test]
fn initial_weights_are_mounted_read_only() {
    let mut raw = raw(&json!({}));
    raw["spec"]["trainer"]["model"]["initFrom"] = json!({
        "path": "mlp.safetensors",
        "volume": {"persistentVolumeClaim": {"claimName": "models"}},
    });
    let pod = pod_of(&validate(&serde_json::from_value(raw).unwrap()).unwrap());
    let named = |list: &Value| -> Value {
        let all = list.as_array().unwrap().iter();
        all.filter(|item| item["name"] == "roundhouse-weights")
            .cloned()
            .collect()
    };
    let volumes = named(&pod["spec"]["volumes"]);
    assert_eq!(volumes[0]["persistentVolumeClaim"]["claimName"], "models");
    let mounts = named(&pod["spec"]["containers"][0]["volumeMounts"]);
    assert_eq!(mounts[0]["mountPath"], "/weights");
    assert_eq!(mounts[0]["readOnly"], true);
}

#[test]
fn one_failed_probe_shows_the_death_of_one_of_several_processes() {
    for (procs, failures) in [(1, 3), (2, 1)] {
        let mut raw = raw(&json!({}));
        raw["spec"]["workers"]["procsPerWorker"] = json!(procs);
        let pod = pod_of(&validate(&serde_json::from_value(raw).unwrap()).unwrap());
        let probe = &pod["spec"]["containers"][0]["readinessProbe"];
        assert_eq!(probe["failureThreshold"], failures);
    }
}

#[test]
fn template_decides_image_user_and_resources() {
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
    let uid = json!({"name": "ROUNDHOUSE_JOB_UID", "value": "u-1"});
    assert!(env.contains(&uid), "{env:?}");
}

#[test]
fn trainer_image_runs_under_the_agent_without_a_template() {
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

/// The value of a variable of the trainer container.
fn variable(pod: &Value, name: &str) -> Option<String> {
    let containers = pod["spec"]["containers"].as_array().unwrap();
    let trainer = containers
        .iter()
        .find(|it| it["name"] == "trainer")
        .unwrap();
    let mut all = trainer["env"].as_array().unwrap().iter();
    let found = all.find(|variable| variable["name"] == name)?;
    found["value"].as_str().map(str::to_owned)
}

#[test]
fn agent_and_trainer_get_the_grace_period_of_their_pod() {
    for (template, seconds) in [
        (json!({}), 30),
        (
            json!({"spec": {"terminationGracePeriodSeconds": 600, "containers": []}}),
            600,
        ),
        (
            json!({"spec": {"terminationGracePeriodSeconds": 0, "containers": []}}),
            0,
        ),
    ] {
        let pod = built(template);
        assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], seconds);
        let value = variable(&pod, "ROUNDHOUSE_TERMINATION_GRACE_SECONDS");
        assert_eq!(value, Some(seconds.to_string()));
    }
}

#[test]
fn worker_gets_the_device_of_its_limits() {
    let limits = |limits: Value| json!({"spec": {"containers": [{"name": "trainer", "resources": {"limits": limits}}]}});
    for (template, device) in [
        (json!({}), Some("cpu")),
        (limits(json!({"cpu": 4})), Some("cpu")),
        (limits(json!({"nvidia.com/gpu": 8})), Some("cuda*8")),
        (limits(json!({"nvidia.com/mig-1g.10gb": 1})), None),
        (
            json!({"spec": {"containers": [
                {"name": "trainer", "resources": {"claims": [{"name": "gpus"}]}},
            ]}}),
            None,
        ),
        (
            json!({"spec": {"containers": [
                {"name": "side", "resources": {"limits": {"nvidia.com/gpu": 1}}}, {"name": "trainer"},
            ]}}),
            Some("cpu"),
        ),
    ] {
        let mut raw = raw(&template);
        raw["spec"]["workers"]["procsPerWorker"] = json!(1);
        let pod = pod_of(&validate(&serde_json::from_value(raw).unwrap()).unwrap());
        let value = variable(&pod, "ROUNDHOUSE_EXPECTED_DEVICE");
        assert_eq!(value.as_deref(), device, "{pod}");
    }
}

#[test]
fn local_copies_have_a_volume_of_the_pod() {
    let volume = json!({"hostPath": {"path": "/srv/states"}});
    for (medium, expected) in [
        (None, json!({"medium": "Memory", "sizeLimit": "4Gi"})),
        (
            Some("Memory"),
            json!({"medium": "Memory", "sizeLimit": "4Gi"}),
        ),
        (Some("Disk"), json!({"sizeLimit": "4Gi"})),
    ] {
        let mut job = raw(&json!({}));
        job["spec"]["checkpoint"] =
            json!({"volume": volume, "local": {"everySteps": 10, "sizeLimit": "4Gi"}});
        if let Some(medium) = medium {
            job["spec"]["checkpoint"]["local"]["medium"] = json!(medium);
        }
        let job = validate(&serde_json::from_value(job).unwrap()).unwrap();
        let pod = serde_json::to_value(build(&job, place(0, 0)).unwrap()).unwrap();
        let named = |all: &Value, key: &str, name: &str| {
            let all = all.as_array().unwrap().iter();
            all.clone().find(|it| it[key] == name).unwrap().clone()
        };
        let spec = &pod["spec"];
        let trainer = &spec["containers"][0];
        let found = named(&spec["volumes"], "name", "roundhouse-copies");
        assert_eq!(found["emptyDir"], expected);
        let mount = named(&trainer["volumeMounts"], "name", "roundhouse-copies");
        let dir = named(&trainer["env"], "name", "ROUNDHOUSE_CHECKPOINT_LOCAL_DIR");
        assert_eq!(mount["mountPath"], dir["value"]);
        for (name, value) in [("EVERY_STEPS", "10"), ("MAX_BYTES", "4294967296")] {
            let name = format!("ROUNDHOUSE_CHECKPOINT_LOCAL_{name}");
            assert_eq!(named(&trainer["env"], "name", &name)["value"], value);
        }
    }
}

/// Whether a pod of a job with this number of second copies and pods per replica shows its pair.
fn shows_its_pair(peer_copies: u32, pods_per_replica: u32) -> bool {
    let mut job = raw(&json!({}));
    job["spec"]["checkpoint"] = json!({
        "volume": {"hostPath": {"path": "/srv/states"}},
        "local": {"everySteps": 10, "sizeLimit": "4Gi"},
    });
    let mut job = validate(&serde_json::from_value(job).unwrap()).unwrap();
    job.pods_per_replica = pods_per_replica;
    let checkpoint = job.checkpoint.as_mut().unwrap();
    checkpoint.local.as_mut().unwrap().peer_copies = Some(peer_copies);
    let pod = pod_of(&job);
    let files = &pod["spec"]["volumes"][0]["downwardAPI"]["items"];
    let mut files = files.as_array().unwrap().iter();
    let file = files.find(|file| file["path"] == "copy-pair");
    let variable = variable(&pod, "ROUNDHOUSE_CHECKPOINT_LOCAL_PAIR_FILE");
    let expected = file.map(|_| "/etc/roundhouse/copy-pair".to_owned());
    assert_eq!(variable, expected, "{pod}");
    file.is_some()
}

#[test]
fn only_workers_of_one_pod_with_peer_copies_show_their_pair() {
    assert!(shows_its_pair(1, 1));
    assert!(!shows_its_pair(0, 1));
    assert!(!shows_its_pair(1, 2), "its place names the holders");
}

#[test]
fn checkpoint_directory_is_named_by_namespace_and_job() {
    let cases = [
        (
            json!({"persistentVolumeClaim": {"claimName": "states"}}),
            json!({"persistentVolumeClaim": {"claimName": "states"}}),
        ),
        (
            json!({"hostPath": {"path": "/srv/states"}}),
            json!({"hostPath": {"path": "/srv/states", "type": "Directory"}}),
        ),
    ];
    for (volume, expected) in cases {
        let mut job = raw(&json!({}));
        job["spec"]["checkpoint"] =
            json!({"volume": volume, "everySteps": 100, "best": {"metric": "top1"}});
        let job = validate(&serde_json::from_value(job).unwrap()).unwrap();
        let pod = serde_json::to_value(build(&job, place(0, 0)).unwrap()).unwrap();
        let spec = &pod["spec"];
        let volumes = spec["volumes"].as_array().unwrap();
        let found = volumes
            .iter()
            .find(|volume| volume["name"] == "roundhouse-checkpoints")
            .unwrap();
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(&found[key], value);
        }
        let trainer = &spec["containers"][0];
        let mounts = trainer["volumeMounts"].as_array().unwrap();
        let mount = mounts
            .iter()
            .find(|mount| mount["mountPath"] == "/checkpoints")
            .unwrap();
        assert!(mount.get("readOnly").is_none() && mount.get("subPath").is_none());
        let variable = |name: &str| {
            let all = trainer["env"].as_array().unwrap();
            let found = all.iter().find(|variable| variable["name"] == name);
            found.map(|variable| variable["value"].as_str().unwrap().to_owned())
        };
        let directory = variable("ROUNDHOUSE_CHECKPOINT_DIR");
        assert_eq!(directory.as_deref(), Some("/checkpoints/ml/digits"));
        let steps = variable("ROUNDHOUSE_CHECKPOINT_EVERY_STEPS");
        assert_eq!(steps.as_deref(), Some("100"));
        assert_eq!(variable("ROUNDHOUSE_CHECKPOINT_EVERY_SECONDS"), None);
        let keep = variable("ROUNDHOUSE_CHECKPOINT_KEEP");
        assert_eq!(keep.as_deref(), Some("3"));
        let best = variable("ROUNDHOUSE_CHECKPOINT_BEST");
        assert_eq!(best.as_deref(), Some("top1"));
    }
}
