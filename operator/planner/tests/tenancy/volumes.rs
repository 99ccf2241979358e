//! Volumes, Secrets, directories, and fields about placement.

use roundhouse_planner::tenancy::Limits;
use roundhouse_planner::testing::raw_job;
use roundhouse_planner::{ValidatedJob, validate};
use serde_json::{Value, json};

use crate::{Case, allow, container, pod, volume};

/// Cases of volumes, Secrets and placement.
pub(crate) fn of_volumes_and_placement() -> Vec<Case> {
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
fn secret_of_an_allowed_volume_kind_must_be_allowed() {
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

fn checkpoint_at(path: &str) -> ValidatedJob {
    let mut job = raw_job(2);
    let checkpoint = json!({"volume": {"hostPath": {"path": path}}});
    job.spec.checkpoint = Some(serde_json::from_value(checkpoint).unwrap());
    validate(&job).unwrap()
}

#[test]
fn checkpoint_host_path_follows_the_policy() {
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
