//! A namespace of a real cluster for one test. The test creates objects, waits for conditions with
//! a deadline, and shows the state of the namespace if a condition does not hold in time.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use roundhouse_api::{ConditionType, TrainingJob};
use serde_json::Value;

mod observe;

/// The interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The limit of waits for something that takes seconds. A busy machine may need many times as long.
pub const DEADLINE: Duration = Duration::from_mins(5);

/// A namespace of one test. The test deletes it when it has passed.
pub struct TestNamespace {
    /// A client of the cluster's administrator.
    pub client: Client,
    pub name: String,
}

impl TestNamespace {
    /// Creates the namespace. Its pods must meet the Pod Security Standard "restricted" unless
    /// `privileged`.
    ///
    /// # Errors
    /// No cluster answers, or it refuses the namespace.
    pub async fn create(name: &str, privileged: bool) -> anyhow::Result<Self> {
        let client = Client::try_default()
            .await
            .context("KUBECONFIG must name a cluster")?;
        let level = if privileged {
            "privileged"
        } else {
            "restricted"
        };
        let namespaces: Api<Namespace> = Api::all(client.clone());
        if namespaces.get_opt(name).await?.is_some() {
            namespaces.delete(name, &DeleteParams::default()).await?;
            until("the old namespace is gone", DEADLINE, || async {
                Ok(namespaces.get_opt(name).await?.is_none().then_some(()))
            })
            .await?;
        }
        let namespace: Namespace = serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": level}},
        }))?;
        namespaces
            .create(&PostParams::default(), &namespace)
            .await?;
        Ok(Self {
            client,
            name: name.to_owned(),
        })
    }

    /// TrainingJobs of the namespace.
    #[must_use]
    pub fn jobs(&self) -> Api<TrainingJob> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Pods of the namespace.
    #[must_use]
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Creates an object of any kind.
    ///
    /// # Errors
    /// The API server's answer.
    pub async fn create_object(&self, object: &Value) -> Result<DynamicObject, kube::Error> {
        let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
        let (group, version) = text("apiVersion")
            .split_once('/')
            .map_or((String::new(), text("apiVersion")), |(g, v)| {
                (g.to_owned(), v.to_owned())
            });
        let kind = ApiResource::from_gvk(&GroupVersionKind {
            group,
            version,
            kind: text("kind"),
        });
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.name, &kind);
        let object = serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
        api.create(&PostParams::default(), &object).await
    }

    /// Waits until a job has ended with the condition `as_`.
    ///
    /// # Errors
    /// The job did not end within ten minutes, or it ended with another condition. The error has
    /// the state of the namespace.
    pub async fn ends(&self, job: &str, as_: ConditionType) -> anyhow::Result<TrainingJob> {
        let jobs = self.jobs();
        let ended = until("the job ends", 2 * DEADLINE, || async {
            let now = jobs.get(job).await?;
            let over = now
                .status
                .as_ref()
                .is_some_and(roundhouse_api::TrainingJobStatus::is_terminal);
            Ok(over.then_some(now))
        });
        let Ok(ended) = ended.await else {
            bail!("{job} did not end\n{}", self.dump().await)
        };
        if !ended
            .status
            .as_ref()
            .is_some_and(|status| status.is_true(as_))
        {
            bail!("{job} did not end as {as_:?}\n{}", self.dump().await);
        }
        Ok(ended)
    }

    /// Deletes the namespace without waiting until it is gone.
    ///
    /// # Errors
    /// The API server's answer.
    pub async fn delete(self) -> anyhow::Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces
            .delete(&self.name, &DeleteParams::default())
            .await?;
        Ok(())
    }
}

/// Polls until `look` returns a value.
///
/// # Errors
/// `look` failed, or it returned no value within `deadline`.
pub async fn until<T, F>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<Option<T>>>,
{
    let end = Instant::now() + deadline;
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if Instant::now() > end {
            bail!("not within {} s: {what}", deadline.as_secs());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
