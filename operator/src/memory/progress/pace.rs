//! How often jobs are asked how far they are, and looked at because of it: by how many train. Pure.

use std::time::Duration;

/// Statuses that are written in a second, of all jobs together. With other writes they are less than 20.
const WRITES_PER_SECOND: u32 = 18;
const MIN_WAKE: Duration = Duration::from_secs(10);
const MAX_WAKE: Duration = Duration::from_secs(60);
pub(crate) const MIN_POLL: Duration = Duration::from_secs(3);
/// Polls between two looks: trouble is heard of by then. The last one is asked when the status is due.
const POLLS: u32 = 5;
/// A bound of all questions, each of which costs 0.2 ms of the processor. Each job is asked once for each look at least.
const POLLS_PER_SECOND: u32 = 100;

/// Times of each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Between two questions.
    pub(crate) poll: Duration,
    /// Between two looks at a job that tells nothing urgent.
    pub(crate) wake: Duration,
}

impl Pace {
    /// With so many jobs that train.
    #[must_use]
    pub(crate) fn of(num_jobs: usize) -> Self {
        let num_jobs = u32::try_from(num_jobs).unwrap_or(u32::MAX);
        let wake = Duration::from_secs((num_jobs / WRITES_PER_SECOND).into());
        let wake = wake.clamp(MIN_WAKE, MAX_WAKE);
        let turn = Duration::from_secs((num_jobs / POLLS_PER_SECOND).into());
        let poll = (wake / POLLS).max(MIN_POLL).max(turn);
        Self {
            poll: poll.min(wake),
            wake,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousand_jobs_cost_at_most_20_writes_per_second() {
        let seconds = Duration::from_secs;
        let few = Pace::of(1);
        assert_eq!((few.poll, few.wake), (seconds(3), seconds(10)));
        let many = Pace::of(1_000);
        assert_eq!((many.poll, many.wake), (seconds(11), seconds(55)));
        assert_eq!(Pace::of(5_000).poll, seconds(50));
        let most = Pace::of(usize::MAX);
        assert_eq!((most.poll, most.wake), (MAX_WAKE, MAX_WAKE));
    }
}
