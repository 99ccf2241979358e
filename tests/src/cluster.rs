//! A namespace of a real cluster, for one test: objects in, conditions awaited with a deadline, state
//! shown when it was in vain.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use roundhouse_api::{ConditionType, TrainingJob};
use serde_json::Value;

mod look;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// Of what takes seconds: on a busy machine it may take many times as long.
pub const DEADLINE: Duration = Duration::from_mins(5);

/// A namespace of its own; it is deleted at the end of a test that passed.
pub struct TestNamespace {
    /// The API server.
    pub client: Client,
    /// The namespace's name.
    pub name: String,
}

impl TestNamespace {
    /// Makes it; pods must meet the restricted standard unless `privileged`.
    ///
    /// # Errors
    /// No cluster, or it refuses.
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

    /// Waits until a job has ended, and fails if it ended otherwise.
    ///
    /// # Errors
    /// It did not end so in time; the state of the namespace is in the error.
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

    /// Deletes the namespace.
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

/// Looks until there is something, or the deadline has passed.
///
/// # Errors
/// The look failed, or the deadline passed.
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
        tokio::time::sleep(PAUSE).await;
    }
}
