//! Fields of a pod that reach beyond the job.

use roundhouse_planner::RejectionReason;
use roundhouse_planner::tenancy::Limits;
use serde_json::{Value, json};

use crate::volumes::of_volumes_and_placement;
use crate::{Case, allow, container, job, pod, security};

/// Fields that give rights to processes.
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

/// Fields about accounts, ports and the kernel.
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

/// Fields with hosts to which the kubelet connects.
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

#[test]
fn fields_beyond_the_job_are_refused_unless_allowed() {
    for (job, field, value, allowed) in [
        of_processes(),
        of_pods(),
        of_hosts(),
        of_volumes_and_placement(),
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
        // The trainer container is inserted before the containers of a template without one.
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
fn usual_fields_are_allowed() {
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
