//! What the administrator of a cluster lets jobs have. A pod template can ask for more than the job itself: the node, other
//! accounts, Secrets. That is refused unless the policy allows it, and so are jobs that are too large or too many. A pure
//! decision over the job and a [`Policy`]; who may do what is in SECURITY.md.

use std::collections::BTreeMap;

use serde::Deserialize;

use self::pods::Finding;
use crate::rejection::{Rejection, RejectionReason};
use crate::told::status::counted;
use crate::validate::ValidatedJob;

mod containers;
mod pods;
mod volumes;

/// Most findings that a message names.
const MOST: usize = 5;

/// The administrator's policy: limits for all namespaces, and others for some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The limits where no other ones apply.
    pub default: Limits,
    /// The first whose selector matches the namespace's labels applies instead.
    pub namespaces: Vec<OfNamespaces>,
}

/// The limits of the namespaces with some labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfNamespaces {
    /// Labels that a namespace must have, all of them.
    pub selector: BTreeMap<String, String>,
    /// The limits.
    pub limits: Limits,
}

/// What jobs of a namespace may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// Most workers of one job; 0: as many as the schema allows.
    pub max_workers_per_job: u32,
    /// Most jobs of one namespace that run at the same time; 0: no limit.
    pub max_jobs_per_namespace: u32,
    /// What pods may have beyond the job.
    pub allow: Allow,
}

/// What pods may have beyond the job. A `*` at the end of an entry stands for anything.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a file")]
pub struct Allow {
    /// Privileged containers.
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
    /// Kinds of volumes beside `hostPath` and `secret`.
    pub volume_types: Vec<String>,
    /// Capabilities that containers may add.
    pub capabilities: Vec<String>,
    /// Kernel parameters that the pod may set.
    pub sysctls: Vec<String>,
    /// Priority classes that begin with `system-`.
    pub priority_classes: Vec<String>,
    /// Container runtimes beside the cluster's default.
    pub runtime_classes: Vec<String>,
    /// Keys of tolerations of the control plane's taints; `*` for one that tolerates everything.
    pub tolerations: Vec<String>,
}

/// Secrets that are meant for jobs by their name.
const SECRETS: &str = "roundhouse-*";
/// Volumes that reach nothing but what the namespace has anyway.
const VOLUME_TYPES: [&str; 8] = [
    "configMap",
    "csi",
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
            capabilities: Vec::new(),
            sysctls: Vec::new(),
            priority_classes: Vec::new(),
            runtime_classes: Vec::new(),
            tolerations: Vec::new(),
        }
    }
}

impl Policy {
    /// The limits of a namespace with these labels.
    #[must_use]
    pub fn limits(&self, labels: &BTreeMap<String, String>) -> &Limits {
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        let mut special = self.namespaces.iter();
        let special = special.find(|it| it.selector.iter().all(has));
        special.map_or(&self.default, |it| &it.limits)
    }
}

impl Limits {
    /// Why the job may not have what it asks for, if it may not.
    #[must_use]
    pub fn refuse(&self, job: &ValidatedJob) -> Option<Rejection> {
        let Self {
            max_workers_per_job,
            max_jobs_per_namespace: _,
            allow,
        } = self;
        let mut findings = Vec::new();
        let most = *max_workers_per_job;
        if most > 0 && job.num_pods() > most {
            let spares = match job.spares {
                0 => String::new(),
                spares => format!(" and {}", counted(spares, "spare")),
            };
            let value = format!("{}{spares} (at most {most})", job.replicas);
            findings.push(Finding {
                field: "spec.workers.replicas".to_owned(),
                value,
                key: "maxWorkersPerJob",
            });
        }
        findings.extend(volumes::of_checkpoint(job, allow));
        findings.extend(pods::findings(job, allow));
        (!findings.is_empty()).then(|| Rejection {
            reason: RejectionReason::ForbiddenByPolicy,
            message: sentence(&findings),
        })
    }

    /// Why the job must wait until others of its namespace have ended, if it must. `ahead`: how many run or come before it.
    #[must_use]
    pub fn refuse_one_more(&self, ahead: u32) -> Option<Rejection> {
        let most = self.max_jobs_per_namespace;
        (most > 0 && ahead >= most).then(|| Rejection {
            reason: RejectionReason::TooManyJobs,
            message: format!(
                "{} of the namespace come before this one, and policy.maxJobsPerNamespace is {most}; it begins when one of \
                 them has ended or is suspended, or when an administrator raises that value of the operator's chart",
                counted(ahead, "job"),
            ),
        })
    }
}

/// What is not allowed, and who changes what.
fn sentence(findings: &[Finding]) -> String {
    let mut parts: Vec<String> = findings.iter().take(MOST).map(Finding::words).collect();
    if let Some(more) = findings.len().checked_sub(MOST).filter(|more| *more > 0) {
        parts.push(format!("and {more} more"));
    }
    format!(
        "{}. Change the job, or ask an administrator to change these values of the operator's chart",
        parts.join("; ")
    )
}

/// Whether an entry of a list allows this: the same, or what it begins with before a `*`.
fn allows(list: &[String], asked: &str) -> bool {
    list.iter().any(|entry| match entry.strip_suffix('*') {
        Some(beginning) => asked.starts_with(beginning),
        None => entry == asked,
    })
}
