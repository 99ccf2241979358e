//! What a watch shows of pods: no list again and again, which would take the API server's time from those that are measured.

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

/// Pods, by name.
type Pods = HashMap<String, Pod>;

/// Waits until these pods are so many, and all as wanted; returns them.
pub(crate) async fn all_are(
    cluster: &Cluster,
    selector: Option<&str>,
    number: u32,
    is_as_wanted: impl Fn(&Pod) -> bool,
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
                    let place = if is_as_wanted(&pod) {
                        &mut wanted
                    } else {
                        &mut others
                    };
                    place.insert(name, pod);
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
    in_time.with_context(|| format!("not within {} s", DEADLINE.as_secs()))?
}

/// Whether it is ready, and nobody has deleted it.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.any(|it| it.type_ == "Ready" && it.status == "True")
}

/// Whether it has been told its place in this generation.
pub(crate) fn is_told(pod: &Pod, generation: u64) -> bool {
    let document = pod.annotations().get(labels::MEMBERSHIP);
    let told = document.and_then(|document| Membership::parse(document).ok().flatten());
    told.is_some_and(|told| told.generation == generation)
}
