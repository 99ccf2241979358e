//! The nodes that a pod's affinity names by a field.

use k8s_openapi::api::core::v1::{NodeAffinity, NodeSelectorTerm, PodSpec};

/// The field of a node's name.
const NAME: &str = "metadata.name";

/// Nodes that a pod is kept from by their names.
pub(super) fn kept_from(spec: &PodSpec) -> Vec<String> {
    let affinity = spec.affinity.as_ref();
    let Some(affinity) = affinity.and_then(|affinity| affinity.node_affinity.as_ref()) else {
        return Vec::new();
    };
    let fields = terms(affinity).flat_map(|term| term.match_fields.iter().flatten());
    let not_in = fields.filter(|field| field.key == NAME && field.operator == "NotIn");
    let names = not_in.flat_map(|field| field.values.iter().flatten());
    let mut names: Vec<String> = names.cloned().collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn terms(affinity: &NodeAffinity) -> impl Iterator<Item = &NodeSelectorTerm> {
    let NodeAffinity {
        preferred_during_scheduling_ignored_during_execution: preferred,
        required_during_scheduling_ignored_during_execution: required,
    } = affinity;
    let preferred = preferred.iter().flatten().map(|term| &term.preference);
    let required = required.iter().flat_map(|it| &it.node_selector_terms);
    preferred.chain(required)
}
