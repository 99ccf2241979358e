//! The objects of a training job as a real API server stores them, and copies of them.

use std::path::Path;

use anyhow::{Context, ensure};
use roundhouse_contract::labels;
use serde_json::Value;

use crate::cluster::{Cluster, NAMESPACE};
use crate::load;
use crate::operator::Operator;
use crate::run::Shape;

/// The kinds that the operator lists: end of the path, API version, kind of the list.
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

/// The objects of one job as JSON texts, for each kind of [`KINDS`].
pub(super) struct Template {
    objects: [Vec<String>; KINDS.len()],
}

impl Template {
    /// Reads the objects of a job whose workers are all in generation 1.
    pub(super) async fn read(program: &Path, workers: u32) -> anyhow::Result<Self> {
        let cluster = Cluster::start(workers + 1).await?;
        let operator = Operator::start(program, &cluster.kubeconfig).await?;
        load::apply(&cluster, "job", Shape { jobs: 1, workers }).await?;
        tokio::time::sleep(load::REST).await;
        drop(operator);
        let mut template = Self {
            objects: Default::default(),
        };
        for (index, (path, version, _)) in KINDS.into_iter().enumerate() {
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
                template.objects[index].push(object.to_string());
            }
        }
        let num_pods = template.per_job(1);
        ensure!(num_pods == workers as usize, "{num_pods} pods of {workers}");
        Ok(template)
    }

    pub(super) const fn per_job(&self, kind: usize) -> usize {
        self.objects[kind].len()
    }

    /// Copies object `index` of a kind into the namespace of copy `job`. The copies keep their
    /// UIDs, because the status has digests of them; the operator distinguishes the copies by
    /// namespace. `version` replaces the resource version of a changed object.
    pub(super) fn copy(
        &self,
        kind: usize,
        index: usize,
        job: usize,
        version: Option<u64>,
    ) -> String {
        let text = self.objects[kind][index].replace(
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
