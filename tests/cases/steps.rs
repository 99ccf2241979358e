//! Steps of a case before the API server: what a user does and a kubelet reports, and what the operator makes of it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use roundhouse_tests::cluster::{TestNamespace, until};
use roundhouse_tests::local::programs;
use roundhouse_tests::manifests::documents;
use serde_json::{Value, json};

use crate::case::{Has, Step};
use crate::values::differences;

/// The operator makes pauses of up to a minute between attempts.
const SOON: Duration = Duration::from_mins(3);

/// A case in its namespace.
pub(crate) struct Play<'a> {
    namespace: TestNamespace,
    folder: &'a Path,
    kubeconfig: PathBuf,
    /// The job that was applied.
    job: String,
}

impl<'a> Play<'a> {
    pub(crate) fn new(namespace: TestNamespace, folder: &'a Path, kubeconfig: PathBuf) -> Self {
        Self {
            namespace,
            folder,
            kubeconfig,
            job: String::new(),
        }
    }

    pub(crate) async fn step(&mut self, step: &Step) -> anyhow::Result<()> {
        match step {
            Step::Apply(file) => self.apply(file).await,
            Step::Runs(pods) => {
                for pod in pods {
                    self.runs(pod).await?;
                }
                Ok(())
            }
            Step::Reports { pod, status } => self.reports(pod, status).await,
            Step::Event {
                pod,
                reason,
                message,
            } => self.happens(pod, reason, message).await,
            Step::Pod { name, has } => self.pod_is(name, has).await,
            Step::Job(has) => self.job_is(has).await,
            Step::Why(words) => self.why(words).await,
        }
    }

    async fn apply(&mut self, file: &str) -> anyhow::Result<()> {
        for object in documents(&self.folder.join(file))? {
            let created = self.namespace.create_object(&object).await?;
            if object["kind"] == "TrainingJob" {
                self.job = created.name_any();
            }
        }
        Ok(())
    }

    async fn runs(&self, pod: &str) -> anyhow::Result<()> {
        let container = json!({"name": "trainer", "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "NOW"}}});
        let status = json!({"phase": "Running", "podIP": "127.0.0.9",
            "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [container]});
        self.reports(pod, &status).await
    }

    /// Once the pod is there, its kubelet reports this.
    async fn reports(&self, pod: &str, status: &Value) -> anyhow::Result<()> {
        self.pod_is(pod, &Has::new()).await?;
        let now = Timestamp::from_second(Timestamp::now().as_second())?;
        let text = status.to_string().replace("NOW", &now.to_string());
        let status: Value = serde_json::from_str(&text)?;
        let patch = Patch::Merge(json!({"status": status}));
        let (pods, parameters) = (self.namespace.pods(), PatchParams::default());
        pods.patch_status(pod, &parameters, &patch).await?;
        Ok(())
    }

    async fn happens(&self, pod: &str, reason: &str, message: &str) -> anyhow::Result<()> {
        let uid = self.namespace.pods().get(pod).await?.uid();
        let about = json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "namespace": self.namespace.name});
        let now = Timestamp::now().to_string();
        let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": format!("{pod}.1")}, "type": "Warning",
            "firstTimestamp": now, "lastTimestamp": now,
            "reason": reason, "message": message, "involvedObject": about});
        self.namespace.create_object(&event).await?;
        Ok(())
    }

    async fn pod_is(&self, name: &str, has: &Has) -> anyhow::Result<()> {
        let pods = self.namespace.pods();
        self.becomes(has, || async {
            let pod = pods.get_opt(name).await?;
            Ok(pod.map(serde_json::to_value).transpose()?)
        })
        .await
    }

    async fn job_is(&self, has: &Has) -> anyhow::Result<()> {
        let jobs = self.namespace.jobs();
        self.becomes(has, || async {
            Ok(Some(serde_json::to_value(jobs.get(&self.job).await?)?))
        })
        .await
    }

    /// Waits until an object is so.
    async fn becomes<F>(&self, has: &Has, look: impl Fn() -> F) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<Option<Value>>>,
    {
        let is = until("it is as expected", SOON, || async {
            let object = look().await?;
            let is_so = object.is_some_and(|it| differences(&it, has).is_empty());
            Ok(is_so.then_some(()))
        });
        let Err(error) = is.await else { return Ok(()) };
        let found = look().await?.unwrap_or_default();
        let differences = differences(&found, has).join("\n");
        Err(error.context(format!("{differences}\n{:#}", found["status"])))
    }

    /// In a thread of its own, so that the operator works on.
    async fn why(&self, words: &[String]) -> anyhow::Result<()> {
        let mut command = Command::new(programs()?.join("kubectl-roundhouse"));
        command.env("KUBECONFIG", &self.kubeconfig).args([
            "why",
            &self.job,
            "-n",
            &self.namespace.name,
        ]);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).context("why")?;
        for word in words {
            ensure!(text.contains(word), "why does not say: {word}\n{text}");
        }
        Ok(())
    }
}
