//! How long jobs take to reach their milestones, over all jobs.

use std::time::Duration;

use prometheus::{Histogram, Registry};

use crate::metrics::histogram;

/// Upper bounds in seconds. The first suit an image that is already on the node, the last a queue
/// for GPUs.
const SECONDS: [f64; 12] = [
    1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 14_400.0,
];

/// A moment in the life of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Milestone {
    /// Enough workers wait in the lobby for the job's first generation.
    Lobby,
    /// The job's first generation trains.
    Start,
    /// The job trains again after an incident.
    Recover,
}

/// One histogram per milestone.
#[derive(Clone, Debug)]
pub(super) struct Milestones {
    lobby: Histogram,
    start: Histogram,
    recover: Histogram,
}

impl Milestones {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let histogram = |name, help| histogram(registry, name, help, &SECONDS);
        Ok(Self {
            lobby: histogram(
                "roundhouse_job_time_to_ready_seconds",
                "From the acceptance or resumption of a job until enough prepared workers for its first generation \
                 wait in the lobby.",
            )?,
            start: histogram(
                "roundhouse_job_start_seconds",
                "From the acceptance or resumption of a job until its condition Running is true: all workers of its \
                 first generation have their places.",
            )?,
            recover: histogram(
                "roundhouse_job_recover_seconds",
                "From the moment the operator counts an incident of a job until its condition Running is true again.",
            )?,
        })
    }

    pub(super) fn reached(&self, milestone: Milestone, took: Duration) {
        let histogram = match milestone {
            Milestone::Lobby => &self.lobby,
            Milestone::Start => &self.start,
            Milestone::Recover => &self.recover,
        };
        histogram.observe(took.as_secs_f64());
    }
}
