//! The headless Service: stable names for the workers, published before they are ready.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use roundhouse_contract::{names, ports};
use roundhouse_planner::JobIdentity;

use super::{has_labels, job_of, metadata, selector};

/// Builds the Service of a job.
#[must_use]
pub fn build(job: &JobIdentity) -> Service {
    let port = |name: &str, port: u16| ServicePort {
        name: Some(name.to_owned()),
        port: port.into(),
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::Int(port.into())),
        ..ServicePort::default()
    };
    Service {
        metadata: metadata(job, names::service(&job.name)),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
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

/// Whether a Service is still what the operator built for the job that controls it. Additional
/// ports are no drift.
#[must_use]
pub fn is_as_built(live: &Service) -> bool {
    let built = job_of(&live.metadata).map(|job| build(&job));
    built.is_some_and(|built| {
        let part = |service: &Service| {
            let spec = service.spec.clone()?;
            let publishes = spec.publish_not_ready_addresses;
            Some((spec.type_, spec.cluster_ip, spec.selector, publishes))
        };
        let ports = |service: &Service| {
            let spec = service.spec.clone();
            spec.and_then(|spec| spec.ports).unwrap_or_default()
        };
        let has = ports(live);
        has_labels(&live.metadata, &built.metadata)
            && part(live) == part(&built)
            && ports(&built).iter().all(|port| has.contains(port))
    })
}
