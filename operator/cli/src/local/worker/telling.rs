//! What a worker tells: the status files of its processes, and which processes these are.

use roundhouse_contract::{Phase, ProcessRestarts, Progress, RankStatus, paths};
use roundhouse_planner::Processes;

use super::Worker;
use crate::facts::Told;
use crate::facts::metrics::Sample;
use crate::local::launch::Setting;
use crate::local::pids;

impl Worker {
    pub(super) fn tells_ready(&self, setting: &Setting) -> bool {
        (0..setting.job.procs_per_worker).all(|rank| {
            self.status(setting, rank)
                .is_some_and(|status| status.phase.is_ready())
        })
    }

    /// What the agent would answer if it were asked.
    pub(super) fn tells_of_processes(&self, setting: &Setting) -> Processes {
        Processes::of(self.tells_of_restarts(setting), self.restarts)
    }

    fn tells_of_restarts(&self, setting: &Setting) -> ProcessRestarts {
        let file = paths::restarts(&self.dir(setting).join("run"));
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let told: ProcessRestarts = serde_json::from_str(&text).unwrap_or_default();
        let is_prepared = |rank: &u32| {
            let status = self.status(setting, *rank);
            status.is_some_and(|status| status.phase != Phase::Preparing)
        };
        let preparing = (0..setting.job.procs_per_worker).filter(|rank| !is_prepared(rank));
        ProcessRestarts {
            preparing: preparing.collect(),
            ..told
        }
    }

    /// All that a page shows of it: progress, processes that were started again, and the step of each rank.
    pub(crate) fn told(&self, setting: &Setting) -> Told {
        let statuses =
            (0..setting.job.procs_per_worker).filter_map(|local| self.status(setting, local));
        let steps = statuses.filter(|status| status.rank.is_some());
        let steps = steps.map(|status| Sample {
            name: "roundhouse_train_step".to_owned(),
            rank: status.rank,
            value: status.step as f64,
        });
        Told {
            metrics: steps.collect(),
            progress: self.progress(setting),
            restarts: Some(self.tells_of_restarts(setting)),
        }
    }

    fn status(&self, setting: &Setting, local_rank: u32) -> Option<RankStatus> {
        let file = paths::rank_status(&self.dir(setting).join("run"), local_rank);
        serde_json::from_str(&std::fs::read_to_string(file).ok()?).ok()
    }

    /// What its first process tells of the job.
    pub(crate) fn progress(&self, setting: &Setting) -> Option<Progress> {
        self.status(setting, 0)?.progress
    }

    /// The processes of its agent, the first time in this life of it.
    pub(crate) fn introduce(&mut self) -> Option<Vec<u32>> {
        let agent = self.child.as_ref()?.id();
        if self.introduced.replace(agent) == Some(agent) {
            return None;
        }
        let pids = pids::children(agent);
        (!pids.is_empty()).then_some(pids)
    }
}
