//! Runs workers as processes: observes them for the planner and carries out a plan's actions.

use std::collections::BTreeMap;

use jiff::Timestamp;
use roundhouse_api::TrainingJobStatus;
use roundhouse_contract::names;
use roundhouse_planner::{Action, Observed, Presence, ProgressSample};

use super::launch_plan::LaunchPlan;
use super::orphans::Orphans;
use super::worker::Worker;
use crate::facts::AgentReport;

/// The workers of one job.
#[derive(Debug)]
pub(crate) struct Executor {
    job_name: String,
    launch_plan: LaunchPlan,
    workers: BTreeMap<String, Worker>,
    orphans: Orphans,
    num_started: u32,
    /// The newest generation that is known to have committed a step.
    formed: Option<u64>,
}

impl Executor {
    pub(crate) fn new(job_name: &str, launch_plan: LaunchPlan) -> Self {
        Self {
            job_name: job_name.to_owned(),
            launch_plan,
            workers: BTreeMap::new(),
            orphans: Orphans::new(),
            num_started: 0,
            formed: None,
        }
    }

    pub(crate) const fn launch_plan(&self) -> &LaunchPlan {
        &self.launch_plan
    }

    /// Replaces the launch plan of workers that start from now on. Running workers keep theirs.
    pub(crate) fn set_launch_plan(&mut self, launch_plan: LaunchPlan) {
        self.launch_plan = launch_plan;
    }

    /// Reaps workers that have ended, kills the processes that they left behind, and restarts
    /// workers that failed.
    pub(crate) fn supervise(&mut self) -> anyhow::Result<()> {
        let progress = self.progress();
        self.formed = self.formed.max(progress.map(|it| it.progress.generation));
        for worker in self.workers.values_mut() {
            if worker.collect()? {
                self.orphans.expect();
            }
        }
        let agents: Vec<i32> = self.workers.values().filter_map(Worker::pid).collect();
        self.orphans.kill(&agents);
        if self.orphans.are_left() {
            return Ok(());
        }
        let mut gone = Vec::new();
        for (name, worker) in &mut self.workers {
            if !worker.supervise(&self.launch_plan) {
                gone.push(name.clone());
            }
        }
        for name in gone {
            self.workers.remove(&name);
        }
        Ok(())
    }

    pub(crate) fn observe(&self, status: &TrainingJobStatus) -> Observed {
        Observed {
            status: status.clone(),
            // Processes on one machine need no Service.
            service: Presence::Ours,
            network_policy: Presence::Ours,
            pods: self.workers.values().map(Worker::observed).collect(),
            // The workers are child processes of this program, so no cache can be stale.
            fresh: true,
            formed: self.formed,
            ..Observed::default()
        }
    }

    /// The progress that the first worker of the newest generation reports.
    pub(crate) fn progress(&self) -> Option<ProgressSample> {
        let firsts = self.workers.values().filter(|it| it.leads().is_some());
        let newest = firsts.max_by_key(|it| it.leads())?;
        let progress = newest.progress(&self.launch_plan)?;
        Some(ProgressSample {
            progress,
            at: Timestamp::now(),
        })
    }

    /// The reports that the agents of running workers would send, by worker.
    pub(crate) fn agent_reports(&self) -> BTreeMap<String, AgentReport> {
        let workers = self.workers.values();
        let reports = workers.map(|worker| {
            let report = worker.agent_report(&self.launch_plan);
            (worker.name().to_owned(), report)
        });
        reports.collect()
    }

    /// Problems since the last call, each of them once.
    pub(crate) fn new_problems(&mut self) -> Vec<String> {
        let workers = self.workers.values_mut();
        workers.filter_map(Worker::new_problem).collect()
    }

    /// Carries out a plan's actions, in order.
    ///
    /// # Errors
    /// The first worker cannot be started. Later workers are retried instead.
    pub(crate) fn apply(&mut self, actions: &[Action]) -> anyhow::Result<()> {
        for action in actions {
            match action {
                Action::CreateService
                | Action::CreateNetworkPolicy
                | Action::RepairService { .. }
                | Action::RepairNetworkPolicy { .. }
                // The job has no scheduling fields here; see `validated`.
                | Action::ApplyPodGroup { .. }
                | Action::DeletePodGroup { .. }
                | Action::LeaveDomain { .. }
                | Action::LabelReplica { .. }
                // The run ends with the job, and its record stays.
                | Action::EndGroup { .. }
                // A replica runs as one worker.
                | Action::PlaceInReplica { .. }
                // All workers are on one node.
                | Action::PairCopies { .. }
                | Action::DeleteJob { .. } => {}
                Action::CreateWorker {
                    index,
                    attempt,
                    // All workers are on one node.
                    replica: _,
                    // No gang scheduler places them.
                    gang: _,
                    avoid: _,
                    lost: _,
                    // All workers run the programs of this machine.
                    built_like: _,
                } => {
                    let name = names::worker_pod(&self.job_name, *index, *attempt);
                    let number = self.num_started + 1;
                    let worker =
                        Worker::start(&self.launch_plan, name.clone(), (*index, *attempt), number)?;
                    self.num_started = number;
                    self.workers.insert(name, worker);
                }
                Action::IssueMembership {
                    pod,
                    resource_version: _,
                    membership,
                    earlier,
                } => {
                    let mut membership = membership.clone();
                    let address = &membership.master.address;
                    // In pods every store has the same port. Here each worker has its own port.
                    let host = self.workers.values().find(|w| w.address() == *address);
                    membership.master.port = host.map_or(0, Worker::port);
                    if let Some(worker) = self.workers.get_mut(pod) {
                        worker.issue(&self.launch_plan, membership, earlier);
                    }
                }
                Action::DeletePod {
                    pod,
                    uid: _,
                    resource_version: _,
                    reason: _,
                } => {
                    if let Some(worker) = self.workers.get_mut(pod) {
                        worker.delete();
                    }
                }
            }
        }
        Ok(())
    }

    /// Process ids of workers that have joined a generation, if they were not printed yet.
    pub(crate) fn new_processes(&mut self) -> Option<String> {
        let mut joined = Vec::new();
        for (name, worker) in &mut self.workers {
            if let Some(pids) = worker.new_processes(&self.launch_plan) {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                joined.push(format!("{name} {}", pids.join(" ")));
            }
        }
        (!joined.is_empty()).then(|| format!("Processes: {}", joined.join(", ")))
    }

    /// Asks all workers to leave (SIGTERM).
    pub(crate) fn ask_to_leave(&mut self) {
        self.workers.values_mut().for_each(Worker::delete);
    }

    /// Kills all workers (SIGKILL).
    pub(crate) fn kill(&mut self) {
        self.workers.values_mut().for_each(Worker::kill);
    }

    pub(crate) fn num_workers(&self) -> usize {
        self.workers.len()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.workers.values().map(Worker::name)
    }
}
