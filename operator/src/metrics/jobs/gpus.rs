//! GPU-seconds of a job: held by its pods, and of these the ones in which they train. Their quotient is the goodput.
//!
//! A pod holds its GPUs from the moment it is scheduled until it has ended, whatever its containers do meanwhile. A GPU
//! trains while the pod is a member of the newest generation, lives, and the Running condition of the job is true. The
//! account is pure: it is told the time. It begins when this process first sees the job; time before that was counted
//! by an earlier process, whose counters are gone, as Prometheus expects.

use std::time::Instant;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use roundhouse_api::{ConditionType, TrainingJobStatus};
use roundhouse_planner::worker_state::is_survivor;
use roundhouse_planner::{Pod, PodPhase, gpu};

/// GPUs of a job at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gpus {
    /// Held by its pods.
    pub held: u32,
    /// Those of them whose pods train; never more than are held.
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

/// GPUs in the limits of a pod's containers. A slice of a GPU (MIG) counts as one. Resource claims (DRA) do not tell how
/// many there are, and count as none.
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

/// Sums of GPU-seconds, by a clock that is passed in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    now: Gpus,
    /// Since when the job has had `now`; `None` before the first word of it.
    since: Option<Instant>,
    held_seconds: f64,
    training_seconds: f64,
}

impl Account {
    /// From `at` on the job has these GPUs.
    pub fn set(&mut self, gpus: Gpus, at: Instant) {
        (self.held_seconds, self.training_seconds) = self.seconds(at);
        self.now = gpus;
        // Of two moments that come in the wrong order none is counted twice.
        self.since = self.since.max(Some(at));
    }

    /// The GPUs that it has.
    #[must_use]
    pub const fn gpus(&self) -> Gpus {
        self.now
    }

    /// GPU-seconds until `at`: held, and of these training.
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
