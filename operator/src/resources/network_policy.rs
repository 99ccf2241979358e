//! The NetworkPolicy: the rendezvous store listens on all interfaces and asks nobody who they are, so
//! only pods of the same job may reach it. The agent's HTTP port is open to every source: neither the kubelet, which
//! probes it, nor a scraper or the operator has a label to select by in every cluster. The agent bounds what a client
//! there can cost it.

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use roundhouse_contract::{names, ports};
use roundhouse_planner::ValidatedJob;

use super::{metadata, selector};

/// Builds it.
#[must_use]
pub fn build(job: &ValidatedJob) -> NetworkPolicy {
    let members = LabelSelector {
        match_labels: Some(selector(job)),
        ..LabelSelector::default()
    };
    let from_members = NetworkPolicyIngressRule {
        from: Some(vec![NetworkPolicyPeer {
            pod_selector: Some(members.clone()),
            ..NetworkPolicyPeer::default()
        }]),
        ports: None,
    };
    let metrics = NetworkPolicyIngressRule {
        from: None,
        ports: Some(vec![NetworkPolicyPort {
            port: Some(IntOrString::Int(ports::AGENT_HTTP.into())),
            protocol: Some("TCP".to_owned()),
            end_port: None,
        }]),
    };
    NetworkPolicy {
        metadata: metadata(job, names::service(&job.key.name)),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(members),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(vec![from_members, metrics]),
            egress: None,
        }),
    }
}
