//! What was read about one job: the objects of the API server and the reports of its agents. All
//! output is a pure function of these facts.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt;
use roundhouse_api::{MembershipStatus, TrainingJob, TrainingJobStatus};
use roundhouse_contract::trainer::Parallel;
use roundhouse_contract::{ProcessRestarts, Progress};
use serde::{Deserialize, Serialize};

pub(crate) mod metrics;
pub(crate) mod worker;

use metrics::Sample;
use worker::Worker;

/// Everything that was read about one job.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) job: TrainingJob,
    /// Pods with the job's UID in their label.
    pub(crate) pods: Vec<Pod>,
    /// Events about the job and its pods, oldest first.
    pub(crate) events: Vec<Event>,
    /// The agents' reports, by pod name.
    pub(crate) reports: BTreeMap<String, AgentReport>,
    /// The time of the read.
    pub(crate) now: Timestamp,
}

/// The report of one agent.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct AgentReport {
    /// Progress of the job as this worker knows it.
    pub(crate) progress: Option<Progress>,
    /// Processes that the agent restarted.
    pub(crate) restarts: Option<ProcessRestarts>,
    /// Metrics of the agent and its ranks.
    pub(crate) metrics: Vec<Sample>,
}

impl Facts {
    pub(crate) fn name(&self) -> String {
        self.job.name_any()
    }

    /// The status; empty before the operator has seen the job.
    pub(crate) fn status(&self) -> TrainingJobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    /// The state in one word, and the message of the most important condition; both are empty
    /// before the operator has seen the job.
    pub(crate) fn front(&self) -> (String, String) {
        let status = self.status();
        let message = status.front().map(|front| front.message.clone());
        (status.state().to_owned(), message.unwrap_or_default())
    }

    /// The number of the newest generation; 0 before the first.
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

    /// The newest progress from an agent or from the status, by generation and then by step.
    pub(crate) fn progress(&self) -> Option<Progress> {
        let status = self.job.status.as_ref();
        let stored = status.and_then(|status| status.progress.as_ref());
        let stored = stored.map(|stored| stored.progress.clone());
        let reported = self.reports.values();
        let reported = reported.filter_map(|report| report.progress.clone());
        let all = reported.chain(stored.clone());
        // Only rank 0 knows a straggler and the repeated steps, so prefer its report.
        let of_rank_0 = |it: &Progress| (it.straggler.is_some(), it.repeated_steps);
        all.max_by_key(|it| (it.generation, it.step, of_rank_0(it)))
            .map(|newest| merged(newest, stored))
    }

    /// Whether the workers are sharded: the processes of each hold one copy of the state together.
    pub(crate) fn is_sharded(&self) -> bool {
        self.job.spec.workers.sharded == Some(true) || self.parallel().is_sharded()
    }

    /// How the processes of a worker divide a model of the built-in trainer.
    pub(crate) fn parallel(&self) -> Parallel {
        let trainer = self.job.spec.trainer.as_ref();
        trainer.map(|it| it.parallel).unwrap_or_default()
    }

    /// Whether a replica has several pods.
    pub(crate) fn has_large_replicas(&self) -> bool {
        if self.pods_per_replica() == 1 {
            return false;
        }
        // `run --local` runs each replica as one worker, whose process count is that of all pods.
        let issued = self.workers().into_iter().find_map(|worker| worker.place);
        !issued.is_some_and(|place| {
            place.life.is_empty() && place.procs_per_worker == self.procs_of_replica()
        })
    }

    pub(crate) fn pods_per_replica(&self) -> u32 {
        self.job.spec.workers.pods_per_replica.unwrap_or(1).max(1)
    }

    /// Number of pods that the job wants.
    pub(crate) fn num_pods(&self) -> u32 {
        let workers = &self.job.spec.workers;
        let placed = workers.replicas.saturating_mul(self.pods_per_replica());
        placed.saturating_add(workers.spares)
    }

    /// Number of processes of each pod.
    pub(crate) fn procs(&self) -> u32 {
        if self.has_large_replicas() {
            self.procs_of_replica() / self.pods_per_replica()
        } else {
            self.procs_of_replica()
        }
    }

    /// Number of processes of each worker, which may have several pods.
    pub(crate) fn procs_of_replica(&self) -> u32 {
        // Prefer the number that the operator used: its settings decide which resources are GPUs.
        let status = self.job.status.as_ref();
        let membership = status.and_then(|status| status.membership.as_ref());
        let started = membership.and_then(MembershipStatus::procs_per_worker);
        started.unwrap_or_else(|| {
            let valid = roundhouse_planner::validate(&self.job);
            valid.map_or(1, |job| job.procs_per_replica())
        })
    }
}

/// Adds the status's evaluations to the newest progress, because a restarted agent has none yet.
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
    fn procs_are_those_of_the_membership() {
        let case = job()
            .trains(2)
            .with("status/membership/worldSize", json!(8));
        assert_eq!(case.facts().procs(), 4);
    }
}
