//! Nodes that a pod is kept from, beside what the template says of nodes.

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec,
};

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
        let requirements = nodes.iter().map(|node| NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "NotIn".to_owned(),
            values: Some(vec![node.clone()]),
        });
        term.match_fields
            .get_or_insert_default()
            .extend(requirements);
    }
}
