//! Serves the pods of the cluster as targets to Prometheus, and a recorded exposition.
//!
//! Labels of a target:
//! <https://prometheus.io/docs/prometheus/latest/configuration/configuration/#pod>. Form of the
//! answer: <https://prometheus.io/docs/prometheus/latest/http_sd/>.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that runs until the process ends.
#[derive(Debug)]
pub(super) struct Served {
    /// The address at which a node reaches the server.
    pub(super) address: SocketAddr,
}

impl Served {
    /// Serves the targets at `/pods`, and the recorded text at all other paths.
    pub(super) async fn start(node: IpAddr, recorded: String) -> anyhow::Result<Self> {
        let client = Client::try_default().await?;
        let listener = TcpListener::bind((facing(node)?, 0)).await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A request that fails leaves a query without data, which fails the test.
                let _ = answer(stream, &client, &recorded).await;
            }
        });
        Ok(Self { address })
    }
}

/// The address of this host on the route to a node. Connecting a UDP socket sends no packet.
fn facing(node: IpAddr) -> std::io::Result<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect((node, 1))?;
    Ok(socket.local_addr()?.ip())
}

async fn answer(mut stream: TcpStream, client: &Client, recorded: &str) -> anyhow::Result<()> {
    // A request of Prometheus arrives in one read.
    let mut request = [0; 4_096];
    let length = stream.read(&mut request).await?;
    let (kind, body) = if request[..length].starts_with(b"GET /pods ") {
        let pods = Api::<Pod>::all(client.clone());
        let pods = pods.list(&ListParams::default()).await?;
        let targets: Vec<Value> = pods.iter().flat_map(targets).collect();
        ("application/json", serde_json::to_string(&targets)?)
    } else {
        ("text/plain; version=0.0.4", recorded.to_owned())
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    Ok(stream.shutdown().await?)
}

/// One target for each port of a pod's containers.
fn targets(pod: &Pod) -> Vec<Value> {
    let status = pod.status.clone().unwrap_or_default();
    let Some(ip) = status.pod_ip else {
        return Vec::new();
    };
    let spec = pod.spec.clone().unwrap_or_default();
    let mut labels = BTreeMap::from([
        ("namespace".to_owned(), pod.namespace().unwrap_or_default()),
        ("pod_name".to_owned(), pod.name_any()),
        (
            "pod_node_name".to_owned(),
            spec.node_name.unwrap_or_default(),
        ),
        ("pod_phase".to_owned(), status.phase.unwrap_or_default()),
    ]);
    for (what, map) in [("label", pod.labels()), ("annotation", pod.annotations())] {
        labels.extend(
            map.iter()
                .map(|(key, value)| (format!("pod_{what}_{}", sanitized(key)), value.clone())),
        );
    }
    let containers = spec.containers.into_iter();
    let ports = containers.flat_map(|container| container.ports.unwrap_or_default());
    ports
        .map(|port| {
            let mut labels = labels.clone();
            let name = port.name.unwrap_or_default();
            labels.insert("pod_container_port_name".to_owned(), name);
            let number = port.container_port.to_string();
            labels.insert("pod_container_port_number".to_owned(), number);
            let labels: BTreeMap<String, String> = labels
                .into_iter()
                .map(|(key, value)| (format!("__meta_kubernetes_{key}"), value))
                .collect();
            json!({"targets": [format!("{ip}:{}", port.container_port)], "labels": labels})
        })
        .collect()
}

/// A name with characters replaced that Prometheus does not allow in a label's name.
fn sanitized(name: &str) -> String {
    name.chars()
        .map(|one| {
            if one.is_ascii_alphanumeric() {
                one
            } else {
                '_'
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_of_a_pod_is_a_labelled_target() {
        let pod = json!({
            "metadata": {"name": "digits-worker-0-0", "namespace": "ml", "labels": {"roundhouse.dev/job-name": "digits"}},
            "spec": {"nodeName": "node1", "containers": [{"name": "trainer", "ports": [
                {"name": "rendezvous", "containerPort": 29_500}, {"name": "metrics", "containerPort": 9_464},
            ]}]},
            "status": {"phase": "Running", "podIP": "10.244.0.7"},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let found = targets(&pod);
        assert_eq!(found.len(), 2);
        assert_eq!(found[1]["targets"], json!(["10.244.0.7:9464"]));
        for (name, value) in [
            ("pod_label_roundhouse_dev_job_name", "digits"),
            ("pod_container_port_name", "metrics"),
            ("pod_container_port_number", "9464"),
            ("pod_node_name", "node1"),
            ("namespace", "ml"),
        ] {
            assert_eq!(
                found[1]["labels"][format!("__meta_kubernetes_{name}")],
                value
            );
        }
    }

    #[test]
    fn pod_without_address_is_not_a_target() {
        let pod = serde_json::from_value(json!({"metadata": {"name": "waits"}})).unwrap();
        assert!(targets(&pod).is_empty());
    }
}
