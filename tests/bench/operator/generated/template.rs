//! A job that trains, as a real API server has it, and copies of it.

use std::path::Path;

use anyhow::{Context, ensure};
use roundhouse_contract::labels;
use serde_json::Value;

use crate::cluster::{Cluster, NAMESPACE};
use crate::load;
use crate::operator::Operator;
use crate::run::Shape;

/// The kinds that the operator lists, by the end of their paths.
pub(super) const KINDS: [(&str, &str, &str); 4] = [
    (
        "/trainingjobs",
        "roundhouse.dev/v1alpha1",
        "TrainingJobList",
    ),
    ("/pods", "v1", "PodList"),
    ("/services", "v1", "ServiceList"),
    (
        "/networkpolicies",
        "networking.k8s.io/v1",
        "NetworkPolicyList",
    ),
];

/// Objects of one job, as text, by kind.
pub(super) struct Template {
    objects: [Vec<String>; KINDS.len()],
}

impl Template {
    /// Of a job with so many workers, all in generation 1.
    pub(super) async fn take(program: &Path, workers: u32) -> anyhow::Result<Self> {
        let cluster = Cluster::start(workers + 1).await?;
        let operator = Operator::start(program, &cluster.kubeconfig).await?;
        load::apply(&cluster, "job", Shape { jobs: 1, workers }).await?;
        tokio::time::sleep(load::REST).await;
        drop(operator);
        let mut template = Self {
            objects: Default::default(),
        };
        for (place, (path, version, _)) in KINDS.into_iter().enumerate() {
            let root = if version == "v1" { "api" } else { "apis" };
            let ours = match path {
                "/trainingjobs" => String::new(),
                _ => format!(
                    "?labelSelector={}%3D{}",
                    labels::MANAGED_BY,
                    labels::FIELD_MANAGER
                ),
            };
            let uri = format!("/{root}/{version}/namespaces/{NAMESPACE}{path}{ours}");
            let request = http::Request::get(uri).body(Vec::new())?;
            let list: Value = cluster.client.request(request).await?;
            for object in list["items"].as_array().context("no items")? {
                template.objects[place].push(object.to_string());
            }
        }
        let num_pods = template.per_job(1);
        ensure!(num_pods == workers as usize, "{num_pods} pods of {workers}");
        Ok(template)
    }

    pub(super) const fn per_job(&self, kind: usize) -> usize {
        self.objects[kind].len()
    }

    /// Object `place` of a kind, as that of copy `job`: in a namespace of its own. UIDs are those of the template, because the
    /// status has digests of them; the operator's caches are by namespace. `version`, if it has changed since.
    pub(super) fn copy(
        &self,
        kind: usize,
        place: usize,
        job: usize,
        version: Option<u64>,
    ) -> String {
        let text = self.objects[kind][place].replace(
            &format!("\"namespace\":\"{NAMESPACE}\""),
            &format!("\"namespace\":\"ml-{job}\""),
        );
        let Some(version) = version else {
            return text;
        };
        let key = "\"resourceVersion\":\"";
        let Some((before, after)) = text.split_once(key) else {
            return text;
        };
        let end = after.find('"').unwrap_or(0);
        format!("{before}{key}{version}{}", &after[end..])
    }
}
