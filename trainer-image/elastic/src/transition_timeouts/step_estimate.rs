//! What one generation of a training teaches about the next one.

use std::time::Duration;

/// Least time that a rank waits at the store for the others of its generation: longer than the kubelet takes to
/// show a new membership to all pods (its sync period is a minute).
const PATIENCE_AT_THE_STORE: Duration = Duration::from_mins(2);

/// What a process has learned of the steps of a training, and takes along from generation to generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepEstimate {
    /// The first step of a generation, which does more than the others.
    pub(super) first_step: Option<Duration>,
    /// The longest of the others.
    pub(super) longest_step: Option<Duration>,
    /// Ranks of the world that they were measured in.
    pub(super) world_size: u32,
}

impl StepEstimate {
    /// What is expected of a world of another size. With fewer ranks each computes more, so steps take longer. In a
    /// larger world they are not expected to be shorter, because communication grows.
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

    /// The first and the longest step in milliseconds, for other ranks; 0 where nothing is known.
    #[must_use]
    pub fn to_millis(self) -> [u64; 2] {
        [self.first_step, self.longest_step].map(|span| {
            span.map_or(0, |span| {
                u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1)
            })
        })
    }

    /// The inverse of [`Self::to_millis`], of a world of this size.
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

    /// How long a rank waits at the store for the others of its generation, given the longest step of the world that
    /// they still train in: they leave it at a step boundary, two steps after the newcomer has arrived, or four where
    /// hosts run ahead of their devices.
    #[must_use]
    pub fn store_timeout(longest_step: Duration) -> Duration {
        PATIENCE_AT_THE_STORE + longest_step * super::STEPS_UNTIL_ALL_KNOW
    }
}
