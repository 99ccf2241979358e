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
    /// Most incidents in a row without a newly committed step between them. One more fails the job.
    #[schemars(range(min = 0, max = 10_000))]
    pub backoff_limit: u32,
    /// Most incidents in total, independent of the steps between them. One more fails the
    /// job. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_incidents: Option<u32>,
    /// Most pods that replace others, for any cause, without a newly committed step between them.
    /// One more fails the job. Disruptions, lost nodes and deletions are not incidents, so only
    /// this field bounds them. Default: 10 for each pod, at least 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_replacements: Option<u32>,
    /// Rules that choose the action for a failure; the first rule that matches decides. If
    /// none matches: exit codes 64 and 65 fail the job; a disruption (eviction, preemption,
    /// drain, node shutdown) is ignored; exit code 77 (hardware fault) and
    /// `UnexpectedAdmissionError` replace the worker on another node; every other failure
    /// counts. Immutable while the job is not suspended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub rules: Vec<FailureRule>,
    /// Seconds for which the job avoids a node after a failure whose action asks for it.
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

/// One condition, and the action when it holds.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.onExitCodes) ? 1 : 0) + (has(self.onPodConditions) ? 1 : 0) + (has(self.onReasons) ? 1 : 0) == 1")
        .message("give exactly one of onExitCodes, onPodConditions, onReasons in each of failurePolicy.rules")
)]
pub struct FailureRule {
    /// The action for a failure that matches.
    pub action: FailureAction,
    /// The trainer container's exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exit_codes: Option<OnExitCodes>,
    /// The pod has one of these conditions with status True, for example `DisruptionTarget`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 20),
        inner(length(min = 1, max = 316)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub on_pod_conditions: Option<Vec<String>>,
    /// The failure has one of these reasons: of the pod (`Evicted`, `OutOfcpu`,
    /// `UnexpectedAdmissionError`, ...), of its container (`OOMKilled`, ...) or of the trainer
    /// (`HardwareFault`, `Stalled`, ...), as in `status.lastFailure.reason`.
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
    /// It costs nothing; the worker is restarted or replaced.
    Ignore,
    /// It is an incident, and the worker is restarted or replaced, on any node.
    Count,
    /// It is an incident, and the worker is replaced on another node: no new pod of this job is
    /// placed on the old node for `avoidNodeSeconds`.
    ReplaceAndAvoidNode,
}

/// A set of exit codes.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OnExitCodes {
    /// Whether the code must be among `values`, or must not be. `NotIn` never matches 0 or 75: a
    /// worker that exits with 75 has lost a peer, so another failure is the cause.
    pub operator: ExitCodeOperator,
    /// The codes; 128 + n for signal n.
    #[schemars(
        length(min = 1, max = 64),
        inner(range(min = 1, max = 255)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub values: Vec<i32>,
}

/// How exit codes are compared.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitCodeOperator {
    /// The code is one of the values.
    In,
    /// The code is none of the values.
    NotIn,
}
