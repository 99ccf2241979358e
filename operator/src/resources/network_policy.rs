//! The NetworkPolicy: the rendezvous store listens on all interfaces and asks nobody who they are, so
//! only pods of the same job may reach it. The agent's HTTP port is open to every source, unless the administrator names those
//! that may read there: neither the kubelet, which probes it, nor a scraper or the operator has a label to select by in every
//! cluster. The agent bounds what a client there can cost it.

use std::str::FromStr;

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use roundhouse_contract::{names, ports};
use roundhouse_planner::JobKey;

use super::{has_labels, job_of, metadata, selector};

/// Who may read the metrics of workers; empty: everybody.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peers(Vec<NetworkPolicyPeer>);

impl FromStr for Peers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let peers = serde_json::from_str::<Vec<NetworkPolicyPeer>>(text);
        let peers = peers.map_err(|error| error.to_string())?;
        if peers.contains(&NetworkPolicyPeer::default()) {
            return Err("a peer has none of podSelector, namespaceSelector and ipBlock".to_owned());
        }
        Ok(Self(peers))
    }
}

/// Builds it.
#[must_use]
pub fn build(job: &JobKey, scrapers: &Peers) -> NetworkPolicy {
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
        from: Some(scrapers.0.clone()).filter(|peers| !peers.is_empty()),
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

/// Whether a policy is what would be made now for the job that controls it. Rules for egress say nothing while `policyTypes`
/// has none.
#[must_use]
pub fn is_as_built(live: &NetworkPolicy, scrapers: &Peers) -> bool {
    let built = job_of(&live.metadata).map(|job| build(&job, scrapers));
    built.is_some_and(|built| {
        let part = |policy: &NetworkPolicy| {
            let spec = policy.spec.clone()?;
            Some((spec.pod_selector, spec.policy_types, spec.ingress))
        };
        has_labels(&live.metadata, &built.metadata) && part(live) == part(&built)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_those_of_a_network_policy_and_one_that_names_nobody_is_refused() {
        let all = Peers::from_str("[]").unwrap();
        let prometheus = r#"[{"podSelector": {"matchLabels": {"app": "prometheus"}}}]"#;
        let prometheus = Peers::from_str(prometheus).unwrap();
        for text in ["", "{}", "[{}]", r#"[{"podSelectors": {}}]"#] {
            assert!(Peers::from_str(text).is_err(), "{text}");
        }
        let job = JobKey {
            namespace: "ml".to_owned(),
            name: "digits".to_owned(),
            uid: "u".to_owned(),
        };
        let from = |peers: &Peers| {
            let ingress = build(&job, peers).spec.unwrap().ingress.unwrap();
            ingress[1].from.clone()
        };
        assert_eq!(from(&all), None);
        assert_eq!(from(&prometheus), Some(prometheus.0.clone()));
        let policy = build(&job, &all);
        assert!(is_as_built(&policy, &all));
        assert!(!is_as_built(&policy, &prometheus), "it is mended");
    }
}
