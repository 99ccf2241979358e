//! `spec.scheduling`: how the workers are placed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the workers are placed.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Scheduling {
    /// Gang scheduler of the workers: it places `workers.minReplicas` of them together or
    /// none of them. Immutable.
    pub gang: Gang,
    /// Queue of the gang scheduler. Only with `gang: Volcano`; default there: the queue `default`.
    /// Immutable while the job is not suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub queue_name: Option<String>,
    /// PriorityClass of the workers, and of their group if the gang scheduler supports priorities
    /// of groups. Immutable while the job is not suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Label of nodes whose value names a part of the network, such as a rack. All workers are
    /// placed on nodes with one value; with `workers.podsPerReplica`, the pods of each replica are.
    /// Workers of one value get neighbouring ranks. Immutable while the job is not suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 316))]
    pub topology_key: Option<String>,
    /// Whether workers, or the pods of a replica, may only be placed on nodes with one value of
    /// `topologyKey`. Immutable while the job is not suspended.
    pub topology_mode: TopologyMode,
}

/// What happens if the nodes with one value of `topologyKey` have no room for all workers, or for
/// all pods of a replica.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TopologyMode {
    /// The other pods are placed on other nodes.
    #[default]
    Preferred,
    /// The other pods wait. A spare replaces only pods of its own domain.
    Required,
}

/// A gang scheduler that an administrator has installed or enabled.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gang {
    /// Each worker is placed separately, when there is a node for it.
    #[default]
    None,
    /// The plugin Coscheduling of kubernetes-sigs/scheduler-plugins. Workers ask for the scheduler
    /// `scheduler-plugins-scheduler`, unless the template names another one.
    Coscheduling,
    /// Volcano. Workers ask for the scheduler `volcano`, unless the template names another one.
    Volcano,
    /// The scheduler of Kubernetes 1.37 or newer, if its Workload API is enabled: the feature gate
    /// `GenericWorkload` and the API `scheduling.k8s.io/v1beta1`.
    Kubernetes,
}
