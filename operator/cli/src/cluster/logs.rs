//! Reads the logs of a job's pods through the API server.

use anyhow::Context;
use futures::{AsyncBufRead, AsyncBufReadExt, StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::{Api, Client, ResourceExt};
use roundhouse_contract::labels;

use super::{CALL_TIMEOUT, Cluster};
use crate::facts::worker::Worker;
use crate::logs::{Lines, Listing, Part, Source, Target};

/// The logs of all pods of one job, including pods that start later.
pub(crate) struct JobLogs<'a> {
    cluster: &'a Cluster,
    name: String,
    /// UID of the job; a later job with the same name does not count.
    uid: String,
    /// A client without a read timeout, because a followed log may be silent for hours.
    client: Client,
}

impl Cluster {
    /// The logs of a job.
    ///
    /// # Errors
    /// The job does not exist, or the API server does not return it.
    pub(crate) async fn logs(&self, name: &str) -> anyhow::Result<JobLogs<'_>> {
        let job = self.wanted_job(name).await?;
        let mut config = self.config.clone();
        config.read_timeout = None;
        Ok(JobLogs {
            cluster: self,
            name: name.to_owned(),
            uid: job.uid().unwrap_or_default(),
            client: Client::try_from(config)?,
        })
    }

    /// The logs of some known pods, without following them.
    pub(crate) fn logs_of(&self, pods: &[Pod]) -> PodLogs<'_> {
        PodLogs {
            cluster: self,
            targets: targets(pods),
        }
    }
}

pub(crate) struct PodLogs<'a> {
    cluster: &'a Cluster,
    targets: Vec<Target>,
}

impl Source for PodLogs<'_> {
    async fn list(&self) -> anyhow::Result<Listing> {
        Ok(Listing {
            targets: self.targets.clone(),
            is_over: false,
        })
    }

    async fn open(&self, pod: &str, part: Part) -> anyhow::Result<Lines> {
        open(self.cluster, &self.cluster.client, pod, part).await
    }
}

impl Source for JobLogs<'_> {
    async fn list(&self) -> anyhow::Result<Listing> {
        let job = self.cluster.job(&self.name).await?;
        let job = job.filter(|job| job.metadata.uid.as_deref() == Some(&self.uid));
        let Some(job) = job else {
            return Ok(Listing {
                targets: Vec::new(),
                is_over: true,
            });
        };
        let pods = self.cluster.pods(&job).await?;
        let status = job.status.as_ref();
        Ok(Listing {
            targets: targets(&pods),
            is_over: status.is_some_and(roundhouse_api::TrainingJobStatus::is_terminal),
        })
    }

    async fn open(&self, pod: &str, part: Part) -> anyhow::Result<Lines> {
        open(self.cluster, &self.client, pod, part).await
    }
}

async fn open(cluster: &Cluster, client: &Client, pod: &str, part: Part) -> anyhow::Result<Lines> {
    let Part {
        previous,
        follow,
        since,
        tail,
    } = part;
    let parameters = LogParams {
        container: Some(labels::TRAINER_CONTAINER.to_owned()),
        follow,
        previous,
        since_time: since,
        tail_lines: tail,
        timestamps: true,
        ..LogParams::default()
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), cluster.namespace());
    // A silent kubelet must not delay the lines of other pods.
    let bytes = tokio::time::timeout(CALL_TIMEOUT, pods.log_stream(pod, &parameters)).await;
    let bytes = bytes.context("its kubelet does not answer")?;
    Ok(lines(Box::pin(bytes.map_err(super::write::refusal)?)).boxed())
}

/// The log targets of pods, in the order of workers.
pub(crate) fn targets(pods: &[Pod]) -> Vec<Target> {
    let mut targets: Vec<Target> = pods.iter().map(target).collect();
    targets.sort_by_key(|target| target.worker);
    targets
}

fn target(pod: &Pod) -> Target {
    let worker = Worker::of(pod);
    Target {
        uid: pod.uid().unwrap_or_default(),
        worker: worker.index,
        restarts: worker.restarts,
        has_started: !worker.is_unreachable && (worker.is_running || worker.end.is_some()),
        is_running: worker.is_running,
        pod: worker.pod,
    }
}

/// Splits bytes into lines; replaces bytes that are not UTF-8.
fn lines(
    bytes: impl AsyncBufRead + Unpin + Send + 'static,
) -> impl futures::Stream<Item = std::io::Result<String>> + Send + 'static {
    stream::try_unfold(bytes, |mut bytes| async move {
        let mut line = Vec::new();
        if bytes.read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
        let end = line.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'));
        let text = String::from_utf8_lossy(&line[..end.map_or(0, |end| end + 1)]).into_owned();
        Ok(Some((text, bytes)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::TryStreamExt;

    #[tokio::test]
    async fn unfinished_and_invalid_utf8_lines_are_read() {
        let bytes = futures::io::Cursor::new(b"a\r\n\n\xffb".to_vec());
        let found: Vec<String> = lines(bytes).try_collect().await.unwrap();
        assert_eq!(found, ["a", "", "\u{fffd}b"]);
    }
}
