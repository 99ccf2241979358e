//! Observes the objects, logs and metrics of a test's namespace.

use std::fmt::Write;

use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams, LogParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use roundhouse_contract::{labels, ports};

use super::TestNamespace;

impl TestNamespace {
    /// The metrics of a worker, read through the API server's proxy.
    ///
    /// # Errors
    /// The API server cannot reach the pod.
    pub async fn metrics(&self, pod: &str) -> anyhow::Result<String> {
        let path = format!(
            "/api/v1/namespaces/{}/pods/{pod}:{}/proxy{}",
            self.name,
            ports::AGENT_HTTP,
            ports::METRICS_PATH
        );
        let request = http::Request::get(path).body(Vec::new())?;
        Ok(self.client.request_text(request).await?)
    }

    /// The answer of a worker's agent to a request with the job's read nonce, through the API
    /// server's proxy.
    ///
    /// # Errors
    /// The API server cannot reach the pod, or the agent rejects the nonce.
    pub async fn ask_as_reader(
        &self,
        pod: &str,
        path: &str,
        nonce: &str,
    ) -> anyhow::Result<String> {
        let path = format!(
            "/api/v1/namespaces/{}/pods/{pod}:{}/proxy{path}",
            self.name,
            ports::AGENT_HTTP
        );
        let request = http::Request::get(path)
            .header(ports::NONCE_HEADER, nonce)
            .body(Vec::new())?;
        Ok(self.client.request_text(request).await?)
    }

    /// The pods, Services and `NetworkPolicies` with the job's label, as `kind/name`.
    ///
    /// # Errors
    /// The API server's answer.
    pub async fn children(&self, job: &str) -> anyhow::Result<Vec<String>> {
        let selector = ListParams::default().labels(&format!("{}={job}", labels::JOB_NAME));
        let mut all = Vec::new();
        for (group, kind) in [
            ("", "Pod"),
            ("", "Service"),
            ("networking.k8s.io", "NetworkPolicy"),
        ] {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), &self.name, &resource);
            let found = api.list(&selector).await?;
            all.extend(
                found
                    .iter()
                    .map(|object| format!("{kind}/{}", object.name_any())),
            );
        }
        Ok(all)
    }

    /// The reasons of the Events about a job.
    ///
    /// # Errors
    /// The API server's answer.
    pub async fn event_reasons(&self, job: &str) -> anyhow::Result<Vec<String>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.name);
        let all = events.list(&ListParams::default()).await?;
        let about = |event: &&Event| {
            event
                .regarding
                .as_ref()
                .is_some_and(|about| about.name.as_deref() == Some(job))
        };
        Ok(all
            .iter()
            .filter(about)
            .filter_map(|event| event.reason.clone())
            .collect())
    }

    /// The statuses of all jobs and pods and the last 20 lines of each log, for a failed test.
    pub async fn dump(&self) -> String {
        let mut text = String::new();
        for job in self
            .jobs()
            .list(&ListParams::default())
            .await
            .into_iter()
            .flatten()
        {
            let status = serde_json::to_string_pretty(&job.status).unwrap_or_default();
            let _ = writeln!(text, "job {}: {status}", job.name_any());
        }
        for pod in self
            .pods()
            .list(&ListParams::default())
            .await
            .into_iter()
            .flatten()
        {
            let status = serde_json::to_string(&pod.status).unwrap_or_default();
            let log = LogParams {
                tail_lines: Some(20),
                ..LogParams::default()
            };
            let log = self
                .pods()
                .logs(&pod.name_any(), &log)
                .await
                .unwrap_or_default();
            let _ = writeln!(text, "pod {}: {status}\n{log}", pod.name_any());
        }
        text
    }
}
