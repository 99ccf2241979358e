//! Nodes that a pod is kept from, or drawn to, beside what the template says of nodes.

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec,
    PreferredSchedulingTerm, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use roundhouse_api::TopologyMode;
use roundhouse_planner::ValidatedJob;

use crate::resources::selector;

/// As much as a preference can weigh.
const MOST: i32 = 100;

/// Keeps a pod from nodes. Terms of a selector are alternatives, so each of them has to say it. Nodes are
/// named by their name, one a requirement (more than one value is not allowed there): the label
/// `kubernetes.io/hostname` may differ from it.
pub(super) fn keep_from(spec: &mut PodSpec, nodes: &[String]) {
    if nodes.is_empty() {
        return;
    }
    let selector = spec
        .affinity
        .get_or_insert_default()
        .node_affinity
        .get_or_insert_default()
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_with(|| NodeSelector {
            node_selector_terms: Vec::new(),
        });
    let terms = &mut selector.node_selector_terms;
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    for term in terms {
        term.match_fields
            .get_or_insert_default()
            .extend(none_of(nodes));
    }
}

/// Places a pod on other nodes than these if they have room.
pub(super) fn prefer_others(spec: &mut PodSpec, nodes: &[String]) {
    if nodes.is_empty() {
        return;
    }
    let affinity = spec.affinity.get_or_insert_default();
    let preferred = affinity
        .node_affinity
        .get_or_insert_default()
        .preferred_during_scheduling_ignored_during_execution
        .get_or_insert_default();
    preferred.push(PreferredSchedulingTerm {
        weight: MOST,
        preference: NodeSelectorTerm {
            match_expressions: None,
            match_fields: Some(none_of(nodes).collect()),
        },
    });
}

/// Places a pod in one topology domain with the other pods of its job: there alone, or there if there is room.
pub(super) fn pack(spec: &mut PodSpec, job: &ValidatedJob) {
    let Some(key) = &job.scheduling.topology_key else {
        return;
    };
    let with_others = PodAffinityTerm {
        topology_key: key.clone(),
        label_selector: Some(LabelSelector {
            match_labels: Some(selector(&job.key)),
            ..LabelSelector::default()
        }),
        ..PodAffinityTerm::default()
    };
    let affinity = spec.affinity.get_or_insert_default();
    let affinity = affinity.pod_affinity.get_or_insert_default();
    match job.scheduling.topology_mode {
        TopologyMode::Required => affinity
            .required_during_scheduling_ignored_during_execution
            .get_or_insert_default()
            .push(with_others),
        TopologyMode::Preferred => affinity
            .preferred_during_scheduling_ignored_during_execution
            .get_or_insert_default()
            .push(WeightedPodAffinityTerm {
                weight: MOST,
                pod_affinity_term: with_others,
            }),
    }
}

fn none_of(nodes: &[String]) -> impl Iterator<Item = NodeSelectorRequirement> {
    nodes.iter().map(|node| NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(vec![node.clone()]),
    })
}
