//! Waits for conditions of pods with a watch. Repeated lists would load the API server and change
//! the measurement.

use std::collections::HashMap;
use std::pin::pin;

use anyhow::Context;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::watcher::{Config, Event, watcher};
use roundhouse_contract::{Membership, labels};

use crate::cluster::Cluster;
use crate::load::{self, DEADLINE};

type Pods = HashMap<String, Pod>;

/// Waits until there are exactly `number` pods and all of them meet a condition. Returns the pods.
pub(crate) async fn all_are(
    cluster: &Cluster,
    selector: Option<&str>,
    number: u32,
    is_wanted: impl Fn(&Pod) -> bool,
) -> anyhow::Result<Vec<Pod>> {
    let config = Config {
        label_selector: selector.map(ToOwned::to_owned),
        ..Config::default()
    };
    let (mut others, mut wanted) = (Pods::new(), Pods::new());
    let seen = async {
        let mut events = pin!(watcher(load::pods(cluster), config));
        while let Some(event) = events.next().await {
            match event? {
                Event::Init => {
                    others.clear();
                    wanted.clear();
                }
                Event::InitApply(pod) | Event::Apply(pod) => {
                    let name = pod.name_any();
                    others.remove(&name);
                    wanted.remove(&name);
                    let pods = if is_wanted(&pod) {
                        &mut wanted
                    } else {
                        &mut others
                    };
                    pods.insert(name, pod);
                }
                Event::Delete(pod) => {
                    others.remove(&pod.name_any());
                    wanted.remove(&pod.name_any());
                }
                Event::InitDone => {}
            }
            if others.is_empty() && wanted.len() == number as usize {
                return Ok(wanted.into_values().collect());
            }
        }
        anyhow::bail!("the watch ended")
    };
    let in_time = tokio::time::timeout(DEADLINE, seen).await;
    in_time.with_context(|| {
        format!(
            "not all pods are as expected after {} s",
            DEADLINE.as_secs()
        )
    })?
}

/// Whether a pod is ready and not being deleted.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.any(|it| it.type_ == "Ready" && it.status == "True")
}

/// Whether a pod has the membership of a generation.
pub(crate) fn is_member(pod: &Pod, generation: u64) -> bool {
    let document = pod.annotations().get(labels::MEMBERSHIP);
    let membership = document.and_then(|document| Membership::parse(document).ok().flatten());
    membership.is_some_and(|it| it.generation == generation)
}
