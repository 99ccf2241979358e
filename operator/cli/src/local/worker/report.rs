//! Reads the status files of a worker's processes, and lists these processes.

use roundhouse_contract::{Mode, ProcessRestarts, Progress, RankStatus, paths};
use roundhouse_planner::Processes;

use super::Worker;
use crate::facts::AgentReport;
use crate::facts::metrics::Sample;
use crate::local::launch_plan::LaunchPlan;
use crate::local::pids;

impl Worker {
    pub(super) fn is_reported_ready(&self, plan: &LaunchPlan) -> bool {
        let restarts = self.reported_restarts(plan);
        (0..plan.job.procs_per_worker).all(|rank| {
            let status = self.status(plan, rank);
            status.is_some_and(|status| restarts.is_ready(&status))
        })
    }

    /// The state of the processes, as the agent would report it over HTTP.
    pub(super) fn reported_processes(&self, plan: &LaunchPlan) -> Processes {
        Processes::of(self.reported_restarts(plan), self.restarts)
    }

    fn reported_restarts(&self, plan: &LaunchPlan) -> ProcessRestarts {
        let file = paths::restarts(&self.dir(plan).join("run"));
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let reported: ProcessRestarts = serde_json::from_str(&text).unwrap_or_default();
        let ranks = 0..plan.job.procs_per_worker;
        let statuses: Vec<_> = ranks.map(|rank| self.status(plan, rank)).collect();
        reported.with_statuses(&statuses)
    }

    /// The report for the page of `ui`: progress, restarted processes, and the step of each rank.
    pub(crate) fn agent_report(&self, plan: &LaunchPlan) -> AgentReport {
        let statuses = (0..plan.job.procs_per_worker).filter_map(|local| self.status(plan, local));
        let steps = statuses.filter(|status| status.rank.is_some());
        let steps = steps.map(|status| Sample {
            name: "roundhouse_train_step".to_owned(),
            rank: status.rank,
            value: status.step as f64,
        });
        AgentReport {
            metrics: steps.collect(),
            progress: self.progress(plan),
            restarts: Some(self.reported_restarts(plan)),
        }
    }

    fn status(&self, plan: &LaunchPlan, local_rank: u32) -> Option<RankStatus> {
        let file = paths::rank_status(&self.dir(plan).join("run"), local_rank);
        serde_json::from_str(&std::fs::read_to_string(file).ok()?).ok()
    }

    /// The progress that the worker's first process reports.
    pub(crate) fn progress(&self, plan: &LaunchPlan) -> Option<Progress> {
        self.status(plan, 0)?.progress
    }

    /// Pids of the agent's processes in the generation that was issued last, once and only if they
    /// have changed.
    pub(crate) fn new_processes(&mut self, plan: &LaunchPlan) -> Option<Vec<u32>> {
        if !self.printed.is_outdated {
            return None;
        }
        let pids = pids::children(self.child.as_ref()?.id());
        let is_new = |pid: &u32| !self.printed.pids.contains(pid);
        // In restart mode each generation has new processes. Until they start, the agent has those
        // of the former generation, or only some of the new ones.
        let num_procs = plan.job.procs_per_worker as usize;
        if plan.job.program.mode() == Mode::Restart
            && (pids.len() < num_procs || !pids.iter().all(is_new))
        {
            return None;
        }
        self.printed.is_outdated = false;
        let has_changed = pids.iter().any(is_new);
        self.printed.pids.clone_from(&pids);
        has_changed.then_some(pids)
    }
}
