//! The administrator's limits for jobs. A pod template can ask for more than the job itself needs:
//! the node, other accounts, Secrets. The operator refuses that unless the policy allows it. It
//! also refuses jobs that are too large or too many. A pure decision over the job and a [`Policy`];
//! SECURITY.md lists who may do what.

use std::collections::BTreeMap;

use serde::Deserialize;

pub use self::allow::Allow;
use self::finding::Finding;
use crate::rejection::{Rejection, RejectionReason};
use crate::status::counted;
use crate::validate::ValidatedJob;

mod allow;
mod containers;
mod finding;
mod pods;
mod volumes;

/// Most findings that one message names.
const MOST: usize = 5;

/// The administrator's policy: limits for all namespaces, and other limits for some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The limits of namespaces without an entry of their own.
    pub default: Limits,
    /// Limits of selected namespaces. The first entry whose selector matches the
    /// namespace's labels applies instead.
    pub namespaces: Vec<OfNamespaces>,
}

/// The limits of the namespaces with some labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfNamespaces {
    /// Labels that a namespace must have, all of them.
    pub selector: BTreeMap<String, String>,
    pub limits: Limits,
}

/// The limits for jobs of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// Most workers of one job; 0: as many as the schema allows.
    pub max_workers_per_job: u32,
    /// Most jobs of one namespace that run at the same time; 0: no limit.
    pub max_jobs_per_namespace: u32,
    /// What pods may use beyond the job.
    pub allow: Allow,
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
    /// Why the job is refused, if it asks for more than the limits allow.
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
            let pods = if job.has_large_replicas() {
                format!(" of {}", counted(job.pods_per_replica, "pod"))
            } else {
                String::new()
            };
            let value = format!("{}{pods}{spares} (at most {most})", job.replicas);
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

    /// Why the job must wait until other jobs of its namespace have ended, if it must. `ahead` is
    /// the number of jobs that run or come before it.
    #[must_use]
    pub fn refuse_one_more(&self, ahead: u32) -> Option<Rejection> {
        let most = self.max_jobs_per_namespace;
        (most > 0 && ahead >= most).then(|| Rejection {
            reason: RejectionReason::TooManyJobs,
            // The message omits the number of jobs ahead: otherwise each job that ends would change
            // the message of all others and publish an event for each.
            message: format!(
                "at least {most} jobs of this namespace come before it, and policy.maxJobsPerNamespace is {most}; it begins when \
                 enough of them have ended or are suspended, or when an administrator raises that value of the operator's chart"
            ),
        })
    }
}

/// Says what is not allowed, and who can change it.
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
