//! What an administrator allows pods to use.

use serde::Deserialize;

/// What pods may use beyond the job. A `*` at the end of an entry matches any text.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a file")]
pub struct Allow {
    pub privileged: bool,
    /// Containers whose processes can gain rights that their parents lack.
    pub privilege_escalation: bool,
    /// Containers that run as root.
    pub root: bool,
    /// Containers without the usual confinement: seccomp, `AppArmor`, `SELinux`, /proc.
    pub unconfined: bool,
    /// Tokens of a service account in the pod.
    pub service_account_tokens: bool,
    /// Service accounts beside `default`.
    pub service_accounts: Vec<String>,
    /// Secrets, as volumes and in the environment.
    pub secrets: Vec<String>,
    /// Directories of the node. `{namespace}` stands for the namespace of the job.
    pub host_paths: Vec<String>,
    /// Ports of the node.
    pub host_ports: Vec<i32>,
    /// Kinds of volumes other than `hostPath` and `secret`. With `csi`, volumes of all drivers.
    pub volume_types: Vec<String>,
    /// Drivers of `csi` volumes: some of them mount any directory of any server.
    pub csi_drivers: Vec<String>,
    /// Capabilities that containers may add.
    pub capabilities: Vec<String>,
    /// Kernel parameters that the pod may set.
    pub sysctls: Vec<String>,
    /// Hosts in probes and hooks, to which the kubelet connects from the node.
    pub probe_hosts: bool,
    /// Priority classes. `*` matches all that do not start with `system-`.
    pub priority_classes: Vec<String>,
    pub queues: Vec<String>,
    /// Container runtimes beside the cluster's default.
    pub runtime_classes: Vec<String>,
    /// Keys of tolerations of the control plane's taints; `*` for one that tolerates everything.
    pub tolerations: Vec<String>,
}

const ALL: &str = "*";
/// Secrets that are meant for jobs, by their names.
const SECRETS: &str = "roundhouse-*";
/// Volumes that give no access beyond the namespace.
const VOLUME_TYPES: [&str; 7] = [
    "configMap",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
];

impl Default for Allow {
    fn default() -> Self {
        Self {
            privileged: false,
            privilege_escalation: false,
            root: false,
            unconfined: false,
            service_account_tokens: false,
            service_accounts: Vec::new(),
            secrets: vec![SECRETS.to_owned()],
            host_paths: Vec::new(),
            host_ports: Vec::new(),
            volume_types: VOLUME_TYPES.map(str::to_owned).to_vec(),
            csi_drivers: Vec::new(),
            capabilities: Vec::new(),
            sysctls: Vec::new(),
            probe_hosts: false,
            priority_classes: vec![ALL.to_owned()],
            queues: vec![ALL.to_owned()],
            runtime_classes: Vec::new(),
            tolerations: Vec::new(),
        }
    }
}

/// Whether an entry of the list matches: it is equal, or its part before `*` is a prefix.
pub(super) fn allows(list: &[String], asked: &str) -> bool {
    list.iter().any(|entry| match entry.strip_suffix('*') {
        Some(beginning) => asked.starts_with(beginning),
        None => entry == asked,
    })
}
