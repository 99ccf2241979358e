//! Asks the API server whether the caches show the current versions of a job and its pods. The
//! driver does so before it ends or deletes a job because its time is over: after an outage the
//! clock is ahead of the watches. It also does so before it deletes a pod or counts an incident
//! while a watch is stale. This costs a read and a list of metadata for such a job, and nothing for
//! other jobs.
//!
//! The answers also show the time of the API server. If the operator's clock differs, no deadline
//! is over.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod as FullPod;
use kube::ResourceExt;
use kube::api::ListParams;
use roundhouse_api::TrainingJob;
use roundhouse_contract::labels;
use roundhouse_planner::Pod;

use super::Staleness;
use crate::job::JobKey;
use crate::runtime::api::calls::call;
use crate::runtime::api::error::CallError;
use crate::runtime::api::metadata::OfKind;

/// Clocks that differ by more seconds are not those of one cluster.
const MAX_CLOCK_SECONDS: u64 = 30;
/// Pods in one page: the metadata of each has up to 5 kB, and each call has a deadline.
const PAGE: u32 = 500;
/// Pause between two warnings about the clock.
const CLOCK_PAUSE: Duration = Duration::from_mins(5);

/// When the operator last warned that the clocks differ.
#[derive(Debug, Default)]
pub(super) struct ClockWarning(Mutex<Option<Instant>>);

impl ClockWarning {
    /// Whether the warning is due again. Each job whose time is over finds that the clocks differ.
    fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|at| at.elapsed() >= CLOCK_PAUSE);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}

/// The answer of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// Whether the API server has the versions that were observed.
    pub fresh: bool,
    /// Whether the API server's clock differs from the operator's.
    pub clock_off: bool,
}

impl Staleness {
    /// Asks the API server for the versions of the job and its pods, and compares them with what
    /// was observed. `only_time`: the versions do not matter if the clocks differ.
    ///
    /// # Errors
    /// The API server refused to read the job or its pods, or did not answer.
    pub async fn confirm(
        &self,
        job: &TrainingJob,
        observed: &[Pod],
        only_time: bool,
    ) -> Result<Confirmed, CallError> {
        let JobKey { namespace, uid } = JobKey::of(&job.metadata);
        let jobs = OfKind::namespaced::<TrainingJob>(&self.client, &namespace);
        let name = job.name_any();
        let is_same = match call(|| jobs.get(&name)).await {
            Ok(live) => live.resource_version == job.metadata.resource_version,
            Err(error) if error.code() == Some(404) => false,
            Err(error) => return Err(error),
        };
        let clock_off = self.is_clock_off();
        let confirmed = |fresh| Confirmed { fresh, clock_off };
        if !is_same || (clock_off && only_time) {
            return Ok(confirmed(false));
        }
        let pods = OfKind::namespaced::<FullPod>(&self.client, &namespace);
        let (manager, ours) = (labels::MANAGED_BY, labels::FIELD_MANAGER);
        let of_job = format!("{manager}={ours},{}={uid}", labels::JOB_UID);
        let mut parameters = ListParams::default().labels(&of_job).limit(PAGE);
        let mut live = Vec::new();
        loop {
            let page = call(|| pods.list(&parameters)).await?;
            let versions = page.objects.into_iter();
            live.extend(versions.map(|pod| (pod.name.unwrap_or_default(), pod.resource_version)));
            match page.next {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(confirmed(are_same(observed, live.into_iter()))),
            }
        }
    }

    /// Whether the operator's clock differs from that of the API server, by its last answer.
    fn is_clock_off(&self) -> bool {
        let ahead = self.api.clock_ahead();
        let clock_off = ahead.unsigned_abs() > MAX_CLOCK_SECONDS;
        if clock_off && self.clock_warning.is_due() {
            tracing::error!(
                ahead,
                "the clock differs from that of the API server by more than {MAX_CLOCK_SECONDS} s: no job is ended or deleted because \
                 its time is over; set the clock of this node"
            );
        }
        clock_off
    }
}

fn are_same(observed: &[Pod], live: impl Iterator<Item = (String, Option<String>)>) -> bool {
    let known = observed
        .iter()
        .map(|pod| (pod.name.clone(), Some(pod.resource_version.clone())));
    live.collect::<BTreeMap<_, _>>() == known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(name: &str, version: &str) -> Pod {
        Pod {
            name: name.to_owned(),
            resource_version: version.to_owned(),
            ..Pod::default()
        }
    }

    #[test]
    fn pods_are_fresh_only_with_the_versions_of_the_api_server() {
        let cached = [observed("a", "7"), observed("b", "9")];
        for (live, expected, case) in [
            ("b=9 a=7", true, "in another order"),
            ("a=8 b=9", false, "one has changed"),
            ("a=7", false, "one is gone"),
            ("a=7 b=9 c=1", false, "one is new"),
            ("", false, "all are gone"),
        ] {
            let live = live.split_whitespace().filter_map(|it| it.split_once('='));
            let live = live.map(|(name, version)| (name.to_owned(), Some(version.to_owned())));
            assert_eq!(are_same(&cached, live), expected, "{case}");
        }
    }
}
