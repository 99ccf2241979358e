//! The NetworkPolicy of a job. The rendezvous store listens on the pod's address and authenticates
//! no client, so only pods of the same job may reach it. The agent's HTTP port is open to every
//! source, unless the administrator lists the peers that may read there: in some clusters neither
//! the kubelet, which probes that port, nor a scraper nor the operator has a label to select by.
//! The agent bounds the cost of each client.

use std::str::FromStr;

use k8s_openapi::Resource as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use roundhouse_contract::{names, ports};
use roundhouse_planner::JobIdentity;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{has_labels, job_of, metadata, selector};

/// Peers that may read the metrics of workers; empty for all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peers(Vec<NetworkPolicyPeer>);

impl FromStr for Peers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let given: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let peers = Vec::<NetworkPolicyPeer>::deserialize(&given);
        let mut peers = peers.map_err(|error| error.to_string())?;
        // A misspelled key would admit more peers than was meant.
        if let Some(path) = unknown_key(&given, &json!(peers), "peers") {
            return Err(format!("{path} is no field of a NetworkPolicyPeer"));
        }
        peers.iter_mut().for_each(as_kept);
        if peers.contains(&NetworkPolicyPeer::default()) {
            return Err("a peer has none of podSelector, namespaceSelector and ipBlock".to_owned());
        }
        Ok(Self(peers))
    }
}

/// The path of a key that `given` has and `read`, which was parsed from it, lacks.
fn unknown_key(given: &Value, read: &Value, path: &str) -> Option<String> {
    match given {
        Value::Object(fields) => fields.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            match read.get(key) {
                Some(read) => unknown_key(value, read, &path),
                None if value.is_null() => None,
                None => Some(path),
            }
        }),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(at, value)| unknown_key(value, read.get(at)?, &format!("{path}[{at}]"))),
        _ => None,
    }
}

/// Brings a peer into the form that the API server stores: without empty lists and maps.
fn as_kept(peer: &mut NetworkPolicyPeer) {
    let selectors = [&mut peer.pod_selector, &mut peer.namespace_selector];
    for selector in selectors.into_iter().flatten() {
        selector.match_labels.take_if(|labels| labels.is_empty());
        selector.match_expressions.take_if(|all| all.is_empty());
    }
    if let Some(block) = &mut peer.ip_block {
        block.except.take_if(|except| except.is_empty());
    }
}

/// Builds the NetworkPolicy of a job.
#[must_use]
pub fn build(job: &JobIdentity, scrapers: &Peers) -> NetworkPolicy {
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

/// Builds the NetworkPolicy of terminating workers: the same rules, while one of these pods exists.
/// Kubernetes deletes it with the last pod, even if no operator runs.
#[must_use]
pub fn build_leaving(
    job: &JobIdentity,
    scrapers: &Peers,
    pods: &[(String, String)],
) -> NetworkPolicy {
    let mut policy = build(job, scrapers);
    policy.metadata.name = Some(names::leaving_policy(&job.name, &job.uid));
    let owners = pods.iter().map(|(name, uid)| OwnerReference {
        api_version: Pod::API_VERSION.to_owned(),
        kind: Pod::KIND.to_owned(),
        name: name.clone(),
        uid: uid.clone(),
        controller: None,
        block_owner_deletion: None,
    });
    policy.metadata.owner_references = Some(owners.collect());
    policy
}

/// Whether a policy is what the operator would build now for the job that controls it. Rules for
/// egress have no effect while `policyTypes` does not list egress.
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
    fn peer_without_selector_or_unknown_key_is_refused() {
        let all = Peers::from_str("[]").unwrap();
        let prometheus = r#"[{"podSelector": {"matchLabels": {"app": "prometheus"}}}]"#;
        let prometheus = Peers::from_str(prometheus).unwrap();
        for text in ["", "{}", "[{}]"] {
            assert!(Peers::from_str(text).is_err(), "{text}");
        }
        let unknown = [
            (r#"[{"podSelectors": {}}]"#, "peers[0].podSelectors"),
            (
                r#"[{"ipBlock": {"cidr": "::/0"}}, {"podSelector": {"matchLabel": {"a": "b"}}}]"#,
                "peers[1].podSelector.matchLabel",
            ),
        ];
        for (text, path) in unknown {
            let error = Peers::from_str(text).unwrap_err();
            assert_eq!(error, format!("{path} is no field of a NetworkPolicyPeer"));
        }
        let everywhere = r#"[{"namespaceSelector": {}}]"#;
        let empty = r#"[{"namespaceSelector": {"matchLabels": {}, "matchExpressions": []}, "podSelector": null}]"#;
        assert_eq!(Peers::from_str(empty), Peers::from_str(everywhere));
        let job = JobIdentity {
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
        assert!(!is_as_built(&policy, &prometheus), "it is repaired");
    }
}
