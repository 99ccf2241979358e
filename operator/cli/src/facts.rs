//! What was read about one job: the objects of the API server and what its agents told. Everything that is shown is a
//! pure function of this.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt;
use roundhouse_api::{MembershipStatus, TrainingJob, TrainingJobStatus};
use roundhouse_contract::{ProcessRestarts, Progress};
use serde::{Deserialize, Serialize};

pub(crate) mod metrics;
pub(crate) mod worker;

use metrics::Sample;
use worker::Worker;

/// What was read about one job.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The job.
    pub(crate) job: TrainingJob,
    /// Pods with the job's UID in their label.
    pub(crate) pods: Vec<Pod>,
    /// Events about the job and its pods, oldest first.
    pub(crate) events: Vec<Event>,
    /// What agents told, by the name of their pod.
    pub(crate) told: BTreeMap<String, Told>,
    /// When all of this was read.
    pub(crate) now: Timestamp,
}

/// What one agent told.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Told {
    /// Progress of the job as this worker knows it.
    pub(crate) progress: Option<Progress>,
    /// Processes that the agent started anew.
    pub(crate) restarts: Option<ProcessRestarts>,
    /// Metrics of the agent and its ranks.
    pub(crate) metrics: Vec<Sample>,
}

impl Facts {
    /// Name of the job.
    pub(crate) fn name(&self) -> String {
        self.job.name_any()
    }

    /// The status; an empty one before the operator has seen the job.
    pub(crate) fn status(&self) -> TrainingJobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    /// The state in one word, and the message of the condition that matters most now; empty before the operator has seen the job.
    pub(crate) fn front(&self) -> (String, String) {
        let status = self.status();
        let message = status.front().map(|front| front.message.clone());
        (status.state().to_owned(), message.unwrap_or_default())
    }

    /// The newest generation, 0 before the first.
    pub(crate) fn generation(&self) -> u64 {
        let status = self.job.status.as_ref();
        let membership = status.and_then(|status| status.membership.as_ref());
        membership.map_or(0, |membership| membership.generation)
    }

    /// The workers: members of the newest generation by node rank, then the others by index.
    pub(crate) fn workers(&self) -> Vec<Worker> {
        let mut workers: Vec<Worker> = self.pods.iter().map(Worker::of).collect();
        let generation = self.generation();
        workers.sort_by_key(|worker| {
            let place = worker.place_in(generation).map(|place| place.node_rank);
            (place.is_none(), place, worker.index, worker.attempt)
        });
        workers
    }

    /// The newest progress that is known: of an agent, or of the status. What an agent of an older generation says is
    /// not newer than the status.
    pub(crate) fn progress(&self) -> Option<Progress> {
        let status = self.job.status.as_ref();
        let stored = status.and_then(|status| status.progress.as_ref());
        let stored = stored.map(|stored| stored.progress.clone());
        let told = self.told.values().filter_map(|told| told.progress.clone());
        let all = told.chain(stored.clone());
        // Only rank 0 knows a straggler, and what was repeated.
        let of_rank_0 = |it: &Progress| (it.straggler.is_some(), it.repeated_steps);
        all.max_by_key(|it| (it.generation, it.step, of_rank_0(it)))
            .map(|newest| merged(newest, stored))
    }

    /// Processes of each worker.
    pub(crate) fn procs(&self) -> u32 {
        // The job was started with these. What counts as a GPU is a setting of the operator.
        let status = self.job.status.as_ref();
        let membership = status.and_then(|status| status.membership.as_ref());
        let started = membership.and_then(MembershipStatus::procs_per_worker);
        started.unwrap_or_else(|| {
            let valid = roundhouse_planner::validate(&self.job);
            valid.map_or(1, |job| job.procs_per_worker)
        })
    }
}

/// An agent that was started anew may not have evaluated yet: what the status knows of evaluations stays.
fn merged(newest: Progress, stored: Option<Progress>) -> Progress {
    let Some(stored) = stored else { return newest };
    let newest = newest.with_repeats_of(Some(&stored));
    Progress {
        eval_accuracy: newest.eval_accuracy.or(stored.eval_accuracy),
        eval_loss: newest.eval_loss.or(stored.eval_loss),
        eval_perplexity: newest.eval_perplexity.or(stored.eval_perplexity),
        ..newest
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::job;

    #[test]
    fn the_processes_of_a_job_are_those_that_it_was_started_with() {
        let case = job()
            .trains(2)
            .with("status/membership/worldSize", json!(8));
        assert_eq!(case.facts().procs(), 4);
    }
}
