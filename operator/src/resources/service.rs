//! The headless Service: stable names for the workers, published before they are ready.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use roundhouse_contract::{names, ports};
use roundhouse_planner::ValidatedJob;

use super::{metadata, selector};

/// Builds it.
#[must_use]
pub fn build(job: &ValidatedJob) -> Service {
    let port = |name: &str, port: u16| ServicePort {
        name: Some(name.to_owned()),
        port: port.into(),
        ..ServicePort::default()
    };
    Service {
        metadata: metadata(job, names::service(&job.key.name)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(selector(job)),
            ports: Some(vec![
                port(ports::RENDEZVOUS_NAME, ports::RENDEZVOUS),
                port(ports::AGENT_HTTP_NAME, ports::AGENT_HTTP),
            ]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}
