//! Which worker the others wait for: told to the operator, which may let it go first, and once to people.

use roundhouse_contract::Straggler as Told;
use roundhouse_elastic::{StepTimes, Straggler};

use super::Reporter;

/// The ranks of the present generation side by side.
#[derive(Debug)]
pub(super) struct Comparison {
    times: StepTimes,
    /// Node rank of whom people have heard in this generation.
    said: Option<u32>,
}

impl Comparison {
    pub(super) fn new(procs_per_worker: u32) -> Self {
        Self {
            times: StepTimes::new(procs_per_worker),
            said: None,
        }
    }
}

impl Reporter {
    /// What each rank's own part of the step before took, in seconds, and how unevenly that was split. One
    /// rank compares them: the one that is asked for progress.
    pub fn compare(&mut self, compute_seconds: &[f64], unevenness: Option<f64>) {
        if self.status.rank != Some(0) {
            return;
        }
        self.comparison.times.add(compute_seconds, unevenness);
        let straggler = self.comparison.times.straggler();
        self.progress.straggler = straggler.map(|found| Told {
            node_rank: found.node_rank,
            factor: rounded(found.factor()),
        });
        if let Some(found) = straggler
            && self.comparison.said != Some(found.node_rank)
        {
            self.comparison.said = Some(found.node_rank);
            self.say_as_rank_zero(&sentence(&found));
        }
    }

    pub(super) fn forget_comparison(&mut self) {
        self.comparison.times.begin();
        self.comparison.said = None;
        self.progress.straggler = None;
    }
}

fn sentence(straggler: &Straggler) -> String {
    let Straggler {
        node_rank,
        compute_seconds,
        others_seconds,
    } = straggler;
    format!(
        "the worker of node rank {node_rank} takes {} times as long as the others: {:.0} ms of its own in a \
         step, they {:.0} ms",
        rounded(straggler.factor()),
        compute_seconds * 1_000.0,
        others_seconds * 1_000.0,
    )
}

/// One digit after the point is enough for people.
fn rounded(factor: f64) -> f64 {
    (factor * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn straggler_message_has_factor_and_times() {
        let straggler = Straggler {
            node_rank: 2,
            compute_seconds: 0.046,
            others_seconds: 0.0201,
        };
        assert_eq!(
            sentence(&straggler),
            "the worker of node rank 2 takes 2.3 times as long as the others: 46 ms of its own in a step, they 20 ms"
        );
    }
}
