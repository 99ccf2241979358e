//! Finds the worker that the others wait for and reports it: to the operator, which may remove it
//! first, and once in the log.

use roundhouse_contract::Straggler as ReportedStraggler;
use roundhouse_elastic::{StepTimes, Straggler};

use super::Reporter;

/// The step times of the present generation's ranks.
#[derive(Debug)]
pub(super) struct Comparison {
    times: StepTimes,
    /// Node rank of the straggler that was logged in this generation.
    logged: Option<u32>,
}

impl Comparison {
    pub(super) fn new(procs_per_worker: u32) -> Self {
        Self {
            times: StepTimes::new(procs_per_worker),
            logged: None,
        }
    }
}

impl Reporter {
    /// Compares the duration of each rank's own part of the previous step, in seconds, given how
    /// unevenly the work was split. Only rank 0 compares, because the operator polls its progress.
    pub fn compare(&mut self, compute_seconds: &[f64], unevenness: Option<f64>) {
        if self.status.rank != Some(0) {
            return;
        }
        self.comparison.times.add(compute_seconds, unevenness);
        let straggler = self.comparison.times.straggler();
        self.progress.straggler = straggler.map(|found| ReportedStraggler {
            node_rank: found.node_rank,
            factor: rounded(found.factor()),
        });
        if let Some(found) = straggler
            && self.comparison.logged != Some(found.node_rank)
        {
            self.comparison.logged = Some(found.node_rank);
            self.say_as_rank_zero(&sentence(&found));
        }
    }

    pub(super) fn forget_comparison(&mut self) {
        self.comparison.times.begin();
        self.comparison.logged = None;
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

/// Rounds to one decimal place, which is enough for people.
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
