//! `spec.failurePolicy`: what a failure costs, and when it ends the job.
#![allow(
    unreachable_pub,
    reason = "KubeSchema repeats the struct inside a function"
)]

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When failures end the job.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailurePolicy {
    /// Incidents in a row, without a newly committed step between them, until the job fails.
    #[schemars(range(min = 0, max = 10_000))]
    pub backoff_limit: u32,
    /// Incidents in all, whatever was committed between them, until the job fails. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_incidents: Option<u32>,
    /// Pods that take the place of others, for whatever cause, without a newly committed step between them, until the job fails.
    /// Disruptions, lost nodes and deletions are no incidents, so nothing else bounds them. Default: 10 for each worker and
    /// spare, at least 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_replacements: Option<u32>,
    /// What to do about which failure; the first rule that matches decides. If none does: exit codes 64 and
    /// 65 fail the job; a disruption (eviction, preemption, drain, node shutdown) is ignored; exit code 77
    /// (hardware fault) and `UnexpectedAdmissionError` replace the worker on another node; everything else
    /// counts. Immutable while the job is not suspended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub rules: Vec<FailureRule>,
    /// For how long a node is avoided after a failure that asks for it.
    #[schemars(range(min = 1, max = 2_592_000))]
    pub avoid_node_seconds: u32,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            backoff_limit: 6,
            max_incidents: None,
            max_replacements: None,
            rules: Vec::new(),
            avoid_node_seconds: 1_800,
        }
    }
}

/// One condition and what to do when it holds.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.onExitCodes) ? 1 : 0) + (has(self.onPodConditions) ? 1 : 0) + (has(self.onReasons) ? 1 : 0) == 1")
        .message("give exactly one of onExitCodes, onPodConditions, onReasons in each of failurePolicy.rules")
)]
pub struct FailureRule {
    /// What to do.
    pub action: FailureAction,
    /// The trainer container's exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exit_codes: Option<OnExitCodes>,
    /// The pod has one of these conditions, with status True: `DisruptionTarget`, say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 20),
        inner(length(min = 1, max = 316)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub on_pod_conditions: Option<Vec<String>>,
    /// The failure bears one of these reasons: of the pod (`Evicted`, `OutOfcpu`,
    /// `UnexpectedAdmissionError`, ...), of its container (`OOMKilled`, ...) or of the trainer
    /// (`HardwareFault`, `Stalled`, ...), as `status.lastFailure.reason` shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 20),
        inner(length(min = 1, max = 128)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub on_reasons: Option<Vec<String>>,
}

/// What to do about a failure.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureAction {
    /// The job fails at once.
    FailJob,
    /// It costs nothing; the worker comes back.
    Ignore,
    /// It is an incident, and the worker comes back where it was.
    Count,
    /// It is an incident, and the worker comes back on another node: no new pod of this job is placed on
    /// that node for `avoidNodeSeconds`.
    ReplaceAndAvoidNode,
}

/// A set of exit codes.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OnExitCodes {
    /// Whether the code must be among `values`, or must not be. `NotIn` never matches 0 or 75: a worker that
    /// exits with 75 has lost a peer, so another failure is the cause.
    pub operator: ExitCodeOperator,
    /// The codes; 128 + n for signal n.
    #[schemars(
        length(min = 1, max = 64),
        inner(range(min = 1, max = 255)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub values: Vec<i32>,
}

/// How codes are compared.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitCodeOperator {
    /// One of them.
    In,
    /// None of them.
    NotIn,
}
