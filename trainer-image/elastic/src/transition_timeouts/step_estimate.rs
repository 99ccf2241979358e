//! An estimate of step durations that one generation passes to the next.

use std::time::Duration;

/// Minimum time that a rank waits at the store for the others of its generation. It is longer than
/// the kubelet takes to show a new membership to all pods (its sync period is a minute).
const MIN_STORE_TIMEOUT: Duration = Duration::from_mins(2);

/// Durations of steps that a process has measured, carried from generation to generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepEstimate {
    /// The first step of a generation, which includes preparation.
    pub(super) first_step: Option<Duration>,
    /// The longest of the other steps.
    pub(super) longest_step: Option<Duration>,
    /// World size in which they were measured.
    pub(super) world_size: u32,
}

impl StepEstimate {
    /// Scales the estimate to another world size. With fewer ranks each rank computes
    /// more, so steps take longer. With more ranks the steps are not expected to be
    /// shorter, because communication grows.
    #[must_use]
    pub fn scaled_to(self, world_size: u32) -> Self {
        let scale = |span: Duration| {
            if self.world_size <= world_size {
                return span;
            }
            span * self.world_size / world_size.max(1)
        };
        Self {
            first_step: self.first_step.map(scale),
            longest_step: self.longest_step.map(scale),
            world_size,
        }
    }

    /// Returns the first and the longest step in milliseconds, for other ranks; 0 if not measured.
    #[must_use]
    pub fn to_millis(self) -> [u64; 2] {
        [self.first_step, self.longest_step].map(|span| {
            span.map_or(0, |span| {
                u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1)
            })
        })
    }

    /// Parses [`Self::to_millis`] of a process group of this size.
    #[must_use]
    pub fn of_millis(millis: [u64; 2], world_size: u32) -> Self {
        let [first_step, longest_step] =
            millis.map(|millis| (millis > 0).then(|| Duration::from_millis(millis)));
        Self {
            first_step,
            longest_step,
            world_size,
        }
    }

    /// Returns how long a rank waits at the store for the others of its generation, given
    /// the longest step of the process group in which they still train. They leave it at
    /// a step boundary, two steps after the new rank has arrived, or four if hosts run
    /// ahead of their devices.
    #[must_use]
    pub fn store_timeout(longest_step: Duration) -> Duration {
        MIN_STORE_TIMEOUT + longest_step * super::NOTIFICATION_STEPS
    }
}
