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
use roundhouse_planner::JobKey;

use super::{has_labels, job_of, metadata, selector};

/// Builds it.
#[must_use]
pub fn build(job: &JobKey) -> NetworkPolicy {
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
        metadata: metadata(job, names::service(&job.name)),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(members),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(vec![from_members, metrics]),
            egress: None,
        }),
    }
}

/// Whether a policy is still what was made for the job that controls it. Rules for egress say nothing while `policyTypes`
/// has none.
#[must_use]
pub fn is_as_built(live: &NetworkPolicy) -> bool {
    let built = job_of(&live.metadata).map(|job| build(&job));
    built.is_some_and(|built| {
        let part = |policy: &NetworkPolicy| {
            let spec = policy.spec.clone()?;
            Some((spec.pod_selector, spec.policy_types, spec.ingress))
        };
        has_labels(&live.metadata, &built.metadata) && part(live) == part(&built)
    })
}
