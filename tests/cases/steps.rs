//! Runs the steps of a case at an API server: actions of a user and a kubelet, and expectations of
//! the operator's reaction.

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

/// The limit of an expectation. The operator's back-off between attempts is up to a minute.
const SOON: Duration = Duration::from_mins(3);

/// Runs the steps of one case in its namespace.
pub(crate) struct StepRunner<'a> {
    namespace: TestNamespace,
    folder: &'a Path,
    kubeconfig: PathBuf,
    /// The name of the applied job.
    job: String,
}

impl<'a> StepRunner<'a> {
    pub(crate) fn new(namespace: TestNamespace, folder: &'a Path, kubeconfig: PathBuf) -> Self {
        Self {
            namespace,
            folder,
            kubeconfig,
            job: String::new(),
        }
    }

    pub(crate) async fn run(&mut self, step: &Step) -> anyhow::Result<()> {
        match step {
            Step::Apply(file) => self.apply(file).await,
            Step::Runs(pods) => {
                for pod in pods {
                    self.report_ready(pod).await?;
                }
                Ok(())
            }
            Step::Reports { pod, status } => self.report(pod, status).await,
            Step::Event {
                pod,
                reason,
                message,
            } => self.publish_event(pod, reason, message).await,
            Step::Pod { name, has } => self.expect_pod(name, has).await,
            Step::Job(has) => self.expect_job(has).await,
            Step::Why(words) => self.expect_why(words).await,
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

    async fn report_ready(&self, pod: &str) -> anyhow::Result<()> {
        let container = json!({"name": "trainer", "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "NOW"}}});
        let status = json!({"phase": "Running", "podIP": "127.0.0.9",
            "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [container]});
        self.report(pod, &status).await
    }

    /// Waits until the pod exists, and writes its status as its kubelet would.
    async fn report(&self, pod: &str, status: &Value) -> anyhow::Result<()> {
        self.expect_pod(pod, &Has::new()).await?;
        let now = Timestamp::from_second(Timestamp::now().as_second())?;
        let text = status.to_string().replace("NOW", &now.to_string());
        let status: Value = serde_json::from_str(&text)?;
        let patch = Patch::Merge(json!({"status": status}));
        let (pods, parameters) = (self.namespace.pods(), PatchParams::default());
        pods.patch_status(pod, &parameters, &patch).await?;
        Ok(())
    }

    async fn publish_event(&self, pod: &str, reason: &str, message: &str) -> anyhow::Result<()> {
        let uid = self.namespace.pods().get(pod).await?.uid();
        let about = json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "namespace": self.namespace.name});
        let now = Timestamp::now().to_string();
        let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": format!("{pod}.1")}, "type": "Warning",
            "firstTimestamp": now, "lastTimestamp": now,
            "reason": reason, "message": message, "involvedObject": about});
        self.namespace.create_object(&event).await?;
        Ok(())
    }

    async fn expect_pod(&self, name: &str, has: &Has) -> anyhow::Result<()> {
        let pods = self.namespace.pods();
        self.wait_for(has, || async {
            let pod = pods.get_opt(name).await?;
            Ok(pod.map(serde_json::to_value).transpose()?)
        })
        .await
    }

    async fn expect_job(&self, has: &Has) -> anyhow::Result<()> {
        let jobs = self.namespace.jobs();
        self.wait_for(has, || async {
            Ok(Some(serde_json::to_value(jobs.get(&self.job).await?)?))
        })
        .await
    }

    /// Waits until an object has the expected values.
    async fn wait_for<F>(&self, has: &Has, get: impl Fn() -> F) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<Option<Value>>>,
    {
        let reached = until("the object has the expected values", SOON, || async {
            let object = get().await?;
            let is_equal = object.is_some_and(|it| differences(&it, has).is_empty());
            Ok(is_equal.then_some(()))
        });
        let Err(error) = reached.await else {
            return Ok(());
        };
        let found = get().await?.unwrap_or_default();
        let differences = differences(&found, has).join("\n");
        Err(error.context(format!("{differences}\n{:#}", found["status"])))
    }

    /// Runs `kubectl roundhouse why` in another thread, because the operator shares this runtime.
    async fn expect_why(&self, words: &[String]) -> anyhow::Result<()> {
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
            ensure!(
                text.contains(word),
                "the output of why lacks: {word}\n{text}"
            );
        }
        Ok(())
    }
}
