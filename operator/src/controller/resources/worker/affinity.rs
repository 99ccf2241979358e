//! Node affinity and pod affinity of a pod, in addition to those of the template.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec,
    PreferredSchedulingTerm, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use roundhouse_api::TopologyMode;
use roundhouse_contract::{BuiltFrom, labels};
use roundhouse_planner::ValidatedJob;

use super::NodeRef;
use crate::controller::resources::selector;
use crate::watch::topology::HOSTNAME;

/// The largest weight of a preference.
const MOST: i32 = 100;
/// Weight of a weak preference, from 1 to 100.
const LITTLE: i32 = 10;

/// The nodes of these that the affinity can name, in order.
pub(super) fn named<'a>(nodes: impl Iterator<Item = &'a NodeRef>) -> Vec<String> {
    let names = nodes.filter_map(|node| match node {
        NodeRef::Name(name) => Some(name.clone()),
        NodeRef::Hostname(_) => None,
    });
    let names: BTreeSet<String> = names.collect();
    names.into_iter().take(BuiltFrom::MAX_NAMED_NODES).collect()
}

/// Keeps a pod from nodes. The terms of a selector are alternatives, so each of them gets the
/// requirement.
pub(super) fn keep_from(spec: &mut PodSpec, nodes: &[NodeRef]) {
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
        let others = none_of(nodes);
        if let Some(expressions) = others.match_expressions {
            term.match_expressions
                .get_or_insert_default()
                .extend(expressions);
        }
        if let Some(fields) = others.match_fields {
            term.match_fields.get_or_insert_default().extend(fields);
        }
    }
}

/// Makes a pod prefer other nodes than these.
pub(super) fn prefer_others(spec: &mut PodSpec, nodes: &[NodeRef]) {
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
        preference: none_of(nodes),
    });
}

/// Places a pod in the topology domain of the other pods of its job, or of its replica: always
/// there, or only if there is room.
pub(super) fn pack(spec: &mut PodSpec, job: &ValidatedJob, replica: Option<u32>) {
    let Some(key) = &job.scheduling.topology_key else {
        return;
    };
    let affinity = spec.affinity.get_or_insert_default();
    let is_required = job.scheduling.topology_mode == TopologyMode::Required;
    let near_job = near(job, key, &[]);
    match replica {
        None if job.has_large_replicas() => attract(affinity, near_job, LITTLE),
        None if is_required => require(affinity, near_job),
        None => attract(affinity, near_job, MOST),
        Some(index) => {
            let index = index.to_string();
            let of_replica = requirement(labels::REPLICA_INDEX, "In", Some(&index));
            let near_replica = near(job, key, &[of_replica]);
            if is_required {
                require(affinity, near_replica);
                // The first pod of a replica chooses its domain. A domain with another replica may
                // lack room for the remaining pods. `NotIn` alone would also match spares.
                let of_others = [
                    requirement(labels::REPLICA_INDEX, "Exists", None),
                    requirement(labels::REPLICA_INDEX, "NotIn", Some(&index)),
                ];
                repel(affinity, near(job, key, &of_others));
            } else {
                attract(affinity, near_replica, MOST);
                attract(affinity, near_job, LITTLE);
            }
        }
    }
}

/// The pods of a job that attract others to their domain, and match these requirements.
fn near(job: &ValidatedJob, key: &str, which: &[LabelSelectorRequirement]) -> PodAffinityTerm {
    let attracts = [requirement(labels::LEFT_DOMAIN, "DoesNotExist", None)];
    PodAffinityTerm {
        topology_key: key.to_owned(),
        label_selector: Some(LabelSelector {
            match_labels: Some(selector(&job.identity)),
            match_expressions: Some([&attracts, which].concat()),
        }),
        ..PodAffinityTerm::default()
    }
}

fn requirement(key: &str, operator: &str, value: Option<&str>) -> LabelSelectorRequirement {
    LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: value.map(|value| vec![value.to_owned()]),
    }
}

fn require(affinity: &mut Affinity, term: PodAffinityTerm) {
    affinity
        .pod_affinity
        .get_or_insert_default()
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_default()
        .push(term);
}

fn attract(affinity: &mut Affinity, pod_affinity_term: PodAffinityTerm, weight: i32) {
    affinity
        .pod_affinity
        .get_or_insert_default()
        .preferred_during_scheduling_ignored_during_execution
        .get_or_insert_default()
        .push(WeightedPodAffinityTerm {
            weight,
            pod_affinity_term,
        });
}

fn repel(affinity: &mut Affinity, pod_affinity_term: PodAffinityTerm) {
    affinity
        .pod_anti_affinity
        .get_or_insert_default()
        .preferred_during_scheduling_ignored_during_execution
        .get_or_insert_default()
        .push(WeightedPodAffinityTerm {
            weight: LITTLE,
            pod_affinity_term,
        });
}

/// A term that none of these nodes matches. Requirements of a node's name may have only one value
/// each.
fn none_of(nodes: &[NodeRef]) -> NodeSelectorTerm {
    let not_in = |key: &str, values: Vec<String>| NodeSelectorRequirement {
        key: key.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(values),
    };
    let hostnames = nodes.iter().filter_map(|node| match node {
        NodeRef::Hostname(hostname) => Some(hostname.clone()),
        NodeRef::Name(_) => None,
    });
    let hostnames: Vec<String> = hostnames.collect();
    let names = nodes.iter().filter_map(|node| match node {
        NodeRef::Name(name) => Some(not_in("metadata.name", vec![name.clone()])),
        NodeRef::Hostname(_) => None,
    });
    let names: Vec<NodeSelectorRequirement> = names.collect();
    NodeSelectorTerm {
        match_expressions: (!hostnames.is_empty()).then(|| vec![not_in(HOSTNAME, hostnames)]),
        match_fields: (!names.is_empty()).then_some(names),
    }
}
