//! How often jobs are polled for progress, and how often reports wake them. Both depend on how many
//! jobs train. Pure.

use std::time::Duration;

/// Status writes per second, of all jobs together. With other writes they stay below 20.
const WRITES_PER_SECOND: u32 = 18;
const MIN_WAKE: Duration = Duration::from_secs(10);
const MAX_WAKE: Duration = Duration::from_secs(60);
pub(crate) const MIN_POLL: Duration = Duration::from_secs(3);
/// Polls between two status writes. Each of them can report a failure, and the last one happens
/// when the status is due.
const POLLS: u32 = 5;
/// An upper bound of all polls, each of which takes 0.2 ms of CPU time. Each job is polled at least
/// once for each status write.
const POLLS_PER_SECOND: u32 = 100;

/// The intervals of each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// The interval between two polls.
    pub(crate) poll: Duration,
    /// The interval between two wakes of a job that reports nothing urgent.
    pub(crate) wake: Duration,
}

impl Pace {
    /// The intervals while this number of jobs trains.
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
