//! What jobs may have beyond themselves: refused by default, allowed by the administrator's policy.
#![allow(missing_docs, clippy::unwrap_used, clippy::needless_pass_by_value)]

use std::collections::BTreeMap;

use roundhouse_planner::policy::{Limits, OfNamespaces, Policy};
use roundhouse_planner::testing::raw_job;
use roundhouse_planner::{RejectionReason, ValidatedJob, validate};
use serde_json::{Value, json};

/// A job whose pod template is this.
fn job(template: Value) -> ValidatedJob {
    let mut job = raw_job(2);
    job.spec.workers.template = Some(serde_json::from_value(template).unwrap());
    validate(&job).unwrap()
}

fn pod(spec: Value) -> ValidatedJob {
    job(json!({ "spec": spec }))
}

fn container(fields: Value) -> ValidatedJob {
    let mut container = json!({"name": "trainer"});
    for (key, value) in fields.as_object().unwrap() {
        container[key] = value.clone();
    }
    pod(json!({ "containers": [container] }))
}

fn security(context: Value) -> ValidatedJob {
    container(json!({ "securityContext": context }))
}

fn volume(source: Value) -> ValidatedJob {
    let mut volume = json!({"name": "v"});
    for (key, value) in source.as_object().unwrap() {
        volume[key] = value.clone();
    }
    pod(json!({"containers": [], "volumes": [volume]}))
}

fn checkpoint_at(path: &str) -> ValidatedJob {
    let mut job = raw_job(2);
    let checkpoint = json!({"volume": {"hostPath": {"path": path}}});
    job.spec.checkpoint = Some(serde_json::from_value(checkpoint).unwrap());
    validate(&job).unwrap()
}

/// Limits with these values of the key `allow`.
fn allow(values: Value) -> Limits {
    serde_json::from_value(json!({ "allow": values })).unwrap()
}

/// What a job asks for, the path of the field, its value, and what allows it.
type Case = (ValidatedJob, &'static str, &'static str, Value);

/// Rights of processes.
fn of_processes() -> Vec<Case> {
    let pod_security = |it: Value| pod(json!({"containers": [], "securityContext": it}));
    vec![
        (
            security(json!({"privileged": true})),
            "containers[0].securityContext.privileged",
            "true",
            json!({"privileged": true}),
        ),
        (
            security(json!({"windowsOptions": {"hostProcess": true}})),
            "containers[0].securityContext.windowsOptions.hostProcess",
            "true",
            json!({"privileged": true}),
        ),
        (
            security(json!({"allowPrivilegeEscalation": true})),
            "containers[0].securityContext.allowPrivilegeEscalation",
            "true",
            json!({"privilegeEscalation": true}),
        ),
        (
            security(json!({"runAsUser": 0})),
            "containers[0].securityContext.runAsUser",
            "0",
            json!({"root": true}),
        ),
        (
            security(json!({"runAsGroup": 0})),
            "containers[0].securityContext.runAsGroup",
            "0",
            json!({"root": true}),
        ),
        (
            pod_security(json!({"fsGroup": 0})),
            "securityContext.fsGroup",
            "0",
            json!({"root": true}),
        ),
        (
            pod_security(json!({"supplementalGroups": [5, 0]})),
            "securityContext.supplementalGroups[1]",
            "0",
            json!({"root": true}),
        ),
        (
            pod_security(json!({"runAsNonRoot": false})),
            "securityContext.runAsNonRoot",
            "false",
            json!({"root": true}),
        ),
        (
            security(json!({"capabilities": {"add": ["IPC_LOCK"]}})),
            "containers[0].securityContext.capabilities.add[0]",
            "IPC_LOCK",
            json!({"capabilities": ["IPC_LOCK"]}),
        ),
        (
            security(json!({"procMount": "Unmasked"})),
            "containers[0].securityContext.procMount",
            "Unmasked",
            json!({"unconfined": true}),
        ),
        (
            pod_security(json!({"seccompProfile": {"type": "Unconfined"}})),
            "securityContext.seccompProfile.type",
            "Unconfined",
            json!({"unconfined": true}),
        ),
        (
            security(json!({"appArmorProfile": {"type": "Unconfined"}})),
            "containers[0].securityContext.appArmorProfile.type",
            "Unconfined",
            json!({"unconfined": true}),
        ),
        (
            security(json!({"seLinuxOptions": {"type": "spc_t"}})),
            "containers[0].securityContext.seLinuxOptions.type",
            "spc_t",
            json!({"unconfined": true}),
        ),
        (
            pod_security(json!({"seLinuxOptions": {"user": "u"}})),
            "securityContext.seLinuxOptions.user",
            "u",
            json!({"unconfined": true}),
        ),
    ]
}

/// Accounts, ports and kernel.
fn of_pods() -> Vec<Case> {
    let pod_security = |it: Value| pod(json!({"containers": [], "securityContext": it}));
    vec![
        (
            pod_security(json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]})),
            "securityContext.sysctls[0].name",
            "kernel.msgmax",
            json!({"sysctls": ["kernel.*"]}),
        ),
        (
            container(
                json!({"ports": [{"containerPort": 1}, {"containerPort": 2, "hostPort": 8080}]}),
            ),
            "containers[0].ports[1].hostPort",
            "8080",
            json!({"hostPorts": [8080]}),
        ),
        (
            pod(json!({"containers": [], "serviceAccountName": "admin"})),
            "serviceAccountName",
            "admin",
            json!({"serviceAccounts": ["admin"]}),
        ),
        (
            pod(json!({"containers": [], "automountServiceAccountToken": true})),
            "automountServiceAccountToken",
            "true",
            json!({"serviceAccountTokens": true}),
        ),
    ]
}

/// Hosts to which the kubelet connects.
fn of_hosts() -> Vec<Case> {
    let allowed = || json!({"probeHosts": true});
    let metadata = "169.254.169.254";
    let http = || json!({"httpGet": {"host": metadata, "port": 80}});
    let tcp = || json!({"tcpSocket": {"host": metadata, "port": 80}});
    vec![
        (
            container(json!({"livenessProbe": http()})),
            "containers[0].livenessProbe.httpGet.host",
            metadata,
            allowed(),
        ),
        (
            container(json!({"startupProbe": tcp()})),
            "containers[0].startupProbe.tcpSocket.host",
            metadata,
            allowed(),
        ),
        (
            container(json!({"lifecycle": {"postStart": http()}})),
            "containers[0].lifecycle.postStart.httpGet.host",
            metadata,
            allowed(),
        ),
        (
            container(json!({"lifecycle": {"preStop": tcp()}})),
            "containers[0].lifecycle.preStop.tcpSocket.host",
            metadata,
            allowed(),
        ),
        (
            pod(
                json!({"containers": [], "initContainers": [{"name": "i", "readinessProbe": http()}]}),
            ),
            "initContainers[0].readinessProbe.httpGet.host",
            metadata,
            allowed(),
        ),
    ]
}

/// Volumes, Secrets and places.
fn of_volumes_and_places() -> Vec<Case> {
    let secret = |it: Value| container(it);
    vec![
        (
            volume(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}})),
            "volumes[0].projected.sources[0].serviceAccountToken.path",
            "t",
            json!({"serviceAccountTokens": true}),
        ),
        (
            volume(json!({"secret": {"secretName": "db"}})),
            "volumes[0].secret.secretName",
            "db",
            json!({"secrets": ["db"]}),
        ),
        (
            volume(json!({"projected": {"sources": [{"secret": {"name": "db"}}]}})),
            "volumes[0].projected.sources[0].secret.name",
            "db",
            json!({"secrets": ["d*"]}),
        ),
        (
            volume(
                json!({"csi": {"driver": "nfs.csi.k8s.io", "volumeAttributes": {"server": "s"}}}),
            ),
            "volumes[0].csi.driver",
            "nfs.csi.k8s.io",
            json!({"csiDrivers": ["nfs.csi.k8s.io"]}),
        ),
        (
            secret(
                json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}}]}),
            ),
            "containers[0].env[0].valueFrom.secretKeyRef.name",
            "db",
            json!({"secrets": ["db"]}),
        ),
        (
            secret(json!({"envFrom": [{"secretRef": {"name": "db"}}]})),
            "containers[0].envFrom[0].secretRef.name",
            "db",
            json!({"secrets": ["*"]}),
        ),
        (
            volume(json!({"hostPath": {"path": "/data/x"}})),
            "volumes[0].hostPath.path",
            "/data/x",
            json!({"hostPaths": ["/data/*"]}),
        ),
        (
            volume(json!({"nfs": {"server": "s", "path": "/"}})),
            "volumes[0].nfs",
            "nfs",
            json!({"volumeTypes": ["nfs"]}),
        ),
        (
            pod(json!({"containers": [], "priorityClassName": "system-node-critical"})),
            "priorityClassName",
            "system-node-critical",
            json!({"priorityClasses": ["system-node-critical"]}),
        ),
        (
            pod(json!({"containers": [], "runtimeClassName": "nvidia"})),
            "runtimeClassName",
            "nvidia",
            json!({"runtimeClasses": ["nvidia"]}),
        ),
        (
            pod(
                json!({"containers": [], "tolerations": [{"key": "gpu"}, {"key": "node-role.kubernetes.io/control-plane"}]}),
            ),
            "tolerations[1].key",
            "node-role.kubernetes.io/control-plane",
            json!({"tolerations": ["node-role.kubernetes.io/control-plane"]}),
        ),
        (
            pod(json!({"containers": [], "tolerations": [{"operator": "Exists"}]})),
            "tolerations[0].key",
            "*",
            json!({"tolerations": ["*"]}),
        ),
        (
            pod(
                json!({"containers": [], "initContainers": [{"name": "i", "securityContext": {"privileged": true}}]}),
            ),
            "initContainers[0].securityContext.privileged",
            "true",
            json!({"privileged": true}),
        ),
    ]
}

#[test]
fn a_secret_of_a_volume_whose_kind_is_allowed_has_to_be_allowed_too() {
    let ceph = json!({"cephfs": {"monitors": ["m"], "secretRef": {"name": "db"}}});
    let azure = json!({"azureFile": {"shareName": "s", "secretName": "db"}});
    let csi = json!({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "db"}}});
    for (source, field) in [
        (csi, "csi.nodePublishSecretRef.name"),
        (ceph, "cephfs.secretRef.name"),
        (azure, "azureFile.secretName"),
    ] {
        let job = volume(source);
        let types = json!({"volumeTypes": ["cephfs", "azureFile", "csi"]});
        let refused = allow(types).refuse(&job).unwrap();
        let words = format!("volumes[0].{field}");
        assert!(refused.message.contains(&words), "{}", refused.message);
        let both = json!({"volumeTypes": ["cephfs", "azureFile", "csi"], "secrets": ["db"]});
        assert_eq!(allow(both).refuse(&job), None);
    }
}

#[test]
fn each_field_that_reaches_beyond_the_job_is_refused_and_named_unless_it_is_allowed() {
    for (job, field, value, allowed) in [
        of_processes(),
        of_pods(),
        of_hosts(),
        of_volumes_and_places(),
    ]
    .concat()
    {
        let refused = Limits::default().refuse(&job).unwrap();
        assert_eq!(refused.reason, RejectionReason::ForbiddenByPolicy);
        let key = allowed.as_object().unwrap().keys().next().unwrap();
        let words = format!(
            "spec.workers.template.spec.{field}: {value} is not allowed by policy.allow.{key}. "
        );
        let message = &refused.message;
        // The trainer container is added in front of a template without one.
        let shifted = words.replace("containers[0]", "containers[1]");
        assert!(
            message.starts_with(&words) || message.starts_with(&shifted),
            "{words}: {message}"
        );
        assert!(message.contains("administrator"), "{message}");
        assert_eq!(allow(allowed).refuse(&job), None, "{field}");
    }
}

#[test]
fn what_jobs_usually_have_is_not_refused() {
    let templates = [
        json!({"metadata": {"labels": {"team": "vision"}}}),
        json!({"spec": {"containers": [{
            "name": "trainer", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 8}},
            "securityContext": {"runAsUser": 1000, "allowPrivilegeEscalation": false, "privileged": false,
                "capabilities": {"drop": ["ALL"]}, "seLinuxOptions": {"level": "s0:c1,c2", "type": "container_t"},
                "seccompProfile": {"type": "RuntimeDefault"}, "procMount": "Default"},
            "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "roundhouse-hub", "key": "token"}}}],
            "ports": [{"containerPort": 8888}],
            "livenessProbe": {"httpGet": {"port": 8888, "host": ""}},
        }], "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "code", "configMap": {"name": "code"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "scratch", "ephemeral": {}},
            {"name": "info", "projected": {"sources": [{"downwardAPI": {}}, {"configMap": {"name": "a"}}]}},
        ], "serviceAccountName": "default", "automountServiceAccountToken": false, "priorityClassName": "low",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}], "imagePullSecrets": [{"name": "registry"}]}}),
    ];
    for template in templates {
        assert_eq!(Limits::default().refuse(&job(template)), None);
    }
}

#[test]
fn a_list_of_priority_classes_or_queues_allows_no_others() {
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
fn a_directory_for_checkpoints_is_one_of_the_node_and_may_be_that_of_the_namespace() {
    let job = checkpoint_at("/srv/ml/digits");
    let refused = Limits::default().refuse(&job).unwrap();
    assert!(
        refused
            .message
            .starts_with("spec.checkpoint.volume.hostPath.path: /srv/ml/digits is not allowed")
    );
    let paths = |path: &str| allow(json!({ "hostPaths": [path] })).refuse(&job);
    assert_eq!(paths("/srv/{namespace}/*"), None);
    assert!(paths("/srv/other/*").is_some());
}

#[test]
fn many_findings_are_counted_and_not_all_told() {
    let volumes: Vec<_> = (0..9)
        .map(|at| json!({"name": format!("v{at}"), "nfs": {"server": "s", "path": "/"}}))
        .collect();
    let job = pod(json!({"containers": [], "volumes": volumes}));
    let message = Limits::default().refuse(&job).unwrap().message;
    assert_eq!(message.matches("is not allowed").count(), 5);
    assert!(message.contains("; and 4 more. "), "{message}");
}

#[test]
fn a_job_may_have_so_many_workers_and_a_namespace_so_many_jobs() {
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
    assert_eq!(last, Some(third), "one that ends changes nobody's message");
    assert_eq!(Limits::default().refuse(&two), None);
    assert_eq!(Limits::default().refuse_one_more(9_999), None);
}

#[test]
fn the_first_entry_whose_labels_a_namespace_has_applies_to_it() {
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
