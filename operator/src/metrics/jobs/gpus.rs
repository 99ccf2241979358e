//! GPU-seconds of a job: those that its pods hold, and those in which they train. Training divided
//! by held is the goodput.
//!
//! A pod holds its GPUs from the moment it is scheduled until it has ended, whatever its containers
//! do meanwhile. A GPU trains while the pod is a member of the newest generation, lives, and the
//! Running condition of the job is true. The account is pure: the time is passed in. It begins when
//! this process first sees the job. An earlier process counted the time before that, and Prometheus
//! expects that counters restart at zero with a process.

use std::time::Instant;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use roundhouse_api::{ConditionType, TrainingJobStatus};
use roundhouse_planner::worker_state::is_survivor;
use roundhouse_planner::{Pod, PodPhase, gpu};

/// GPUs of a job at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gpus {
    /// GPUs that the job's pods hold.
    pub held: u32,
    /// GPUs of pods that train; never more than `held`.
    pub training: u32,
}

impl Gpus {
    /// The GPUs of these pods of a job with this status, where each pod has `per_pod`.
    #[must_use]
    pub fn of(pods: &[Pod], status: &TrainingJobStatus, per_pod: u32) -> Self {
        let generation = status.membership.as_ref().map(|newest| newest.generation);
        let is_running = status.is_true(ConditionType::Running);
        let trains = |pod: &&Pod| {
            let of = pod.membership.as_ref().map(|place| place.generation);
            is_running && is_survivor(pod) && of == generation && !pod.unreachable
        };
        let holders = || pods.iter().filter(|pod| pod.ours && holds(pod));
        let gpus = |number: usize| {
            u32::try_from(number)
                .unwrap_or(u32::MAX)
                .saturating_mul(per_pod)
        };
        Self {
            held: gpus(holders().count()),
            training: gpus(holders().filter(trains).count()),
        }
    }
}

/// Whether a pod is scheduled and has not ended.
fn holds(pod: &Pod) -> bool {
    pod.node.is_some() && matches!(pod.phase, PodPhase::Pending | PodPhase::Running)
}

/// GPUs in the limits of a pod's containers. A slice of a GPU (MIG) counts as one. Resource claims
/// (DRA) do not show a number of devices, so they count as none.
#[must_use]
pub fn per_pod(template: Option<&PodTemplateSpec>, listed: &gpu::Listed) -> u32 {
    let containers = template.iter().flat_map(|template| &template.spec);
    let containers = containers.flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    let numbers = limits
        .flatten()
        .filter(|(name, _)| gpu::is_gpu(name) || listed.has(name));
    numbers
        .map(|(_, quantity)| quantity.0.parse().unwrap_or(0))
        .fold(0, u32::saturating_add)
}

/// Sums of GPU-seconds. The clock is passed in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    now: Gpus,
    /// Since when the job has had `now`; `None` before the first [`set`](Self::set).
    since: Option<Instant>,
    held_seconds: f64,
    training_seconds: f64,
}

impl Account {
    /// From `at` on the job has these GPUs.
    pub fn set(&mut self, gpus: Gpus, at: Instant) {
        (self.held_seconds, self.training_seconds) = self.seconds(at);
        self.now = gpus;
        // A time that arrives out of order counts no second twice.
        self.since = self.since.max(Some(at));
    }

    /// The GPUs that the job has now.
    #[must_use]
    pub const fn gpus(&self) -> Gpus {
        self.now
    }

    /// GPU-seconds until `at`: held, and training.
    #[must_use]
    pub fn seconds(&self, at: Instant) -> (f64, f64) {
        let since = self.since.unwrap_or(at);
        let seconds = at.saturating_duration_since(since).as_secs_f64();
        let Gpus { held, training } = self.now;
        (
            self.held_seconds + seconds * f64::from(held),
            self.training_seconds + seconds * f64::from(training),
        )
    }
}

#[cfg(test)]
mod tests;
