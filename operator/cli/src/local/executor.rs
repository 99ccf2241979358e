//! Workers as processes: what there is, and the actions of a plan carried out on them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use roundhouse_api::TrainingJobStatus;
use roundhouse_contract::names;
use roundhouse_planner::{Action, Observed, Presence, ProgressSample};

use super::launch::Setting;
use super::orphans::Orphans;
use super::worker::Worker;
use crate::facts::Told;

/// All workers of one job.
#[derive(Debug)]
pub(crate) struct Executor {
    job_name: String,
    setting: Setting,
    workers: BTreeMap<String, Worker>,
    orphans: Orphans,
    num_started: u32,
}

impl Executor {
    pub(crate) fn new(job_name: &str, setting: Setting) -> Self {
        Self {
            job_name: job_name.to_owned(),
            setting,
            workers: BTreeMap::new(),
            orphans: Orphans::default(),
            num_started: 0,
        }
    }

    /// What the workers have in common.
    pub(crate) const fn setting(&self) -> &Setting {
        &self.setting
    }

    /// Gives workers that start from now on another setting. Workers that run keep theirs.
    pub(crate) fn renew(&mut self, setting: Setting) {
        self.setting = setting;
    }

    /// Collects workers that have ended and what they left behind, then restarts those that failed.
    pub(crate) fn tend(&mut self) -> anyhow::Result<()> {
        for worker in self.workers.values_mut() {
            if worker.collect()? {
                self.orphans.expect();
            }
        }
        let agents: Vec<i32> = self.workers.values().filter_map(Worker::pid).collect();
        self.orphans.tend(&agents);
        if self.orphans.are_left() {
            return Ok(());
        }
        let mut gone = Vec::new();
        for (name, worker) in &mut self.workers {
            if !worker.tend(&self.setting) {
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
            // Processes of one machine find each other without a Service.
            service: Presence::Ours,
            network_policy: Presence::Ours,
            pods: self.workers.values().map(Worker::observed).collect(),
            // They are processes of this program: nothing is cached.
            fresh: true,
            ..Observed::default()
        }
    }

    /// What the first worker of the newest generation tells.
    pub(crate) fn progress(&self) -> Option<ProgressSample> {
        let firsts = self.workers.values().filter(|it| it.leads().is_some());
        let newest = firsts.max_by_key(|it| it.leads())?;
        let progress = newest.progress(&self.setting)?;
        Some(ProgressSample {
            progress,
            at: Timestamp::now(),
        })
    }

    /// What the agents of workers that run would answer, by worker.
    pub(crate) fn told(&self) -> BTreeMap<String, Told> {
        let workers = self.workers.values();
        let told = workers.map(|worker| (worker.name().to_owned(), worker.told(&self.setting)));
        told.collect()
    }

    /// What cannot be done for now, each thing once.
    pub(crate) fn troubles(&mut self) -> Vec<String> {
        let workers = self.workers.values_mut();
        workers.filter_map(Worker::trouble).collect()
    }

    /// Carries out a plan's actions, in order.
    ///
    /// # Errors
    /// Not even the first worker can be started.
    pub(crate) fn apply(&mut self, actions: &[Action]) -> anyhow::Result<()> {
        for action in actions {
            match action {
                Action::CreateService
                | Action::CreateNetworkPolicy
                | Action::RepairService { .. }
                | Action::RepairNetworkPolicy { .. }
                // Nothing is scheduled here: see `validated`.
                | Action::ApplyPodGroup { .. }
                | Action::DeletePodGroup { .. }
                | Action::LeaveDomain { .. }
                // The run ends with the job, and what it has told stays.
                | Action::EndGroup { .. }
                | Action::DeleteJob { .. } => {}
                Action::CreateWorker {
                    index,
                    attempt,
                    // All are on one node.
                    avoid: _,
                    lost: _,
                    // All run the programs of this machine.
                    built_like: _,
                } => {
                    let name = names::worker_pod(&self.job_name, *index, *attempt);
                    let number = self.num_started + 1;
                    let worker =
                        Worker::start(&self.setting, name.clone(), (*index, *attempt), number)?;
                    self.num_started = number;
                    self.workers.insert(name, worker);
                }
                Action::IssueMembership {
                    pod,
                    resource_version: _,
                    membership,
                    earlier: _,
                } => {
                    let mut membership = membership.clone();
                    let address = &membership.master.address;
                    // In pods all stores have one port; here each has its own.
                    let host = self.workers.values().find(|w| w.address() == *address);
                    membership.master.port = host.map_or(0, Worker::port);
                    if let Some(worker) = self.workers.get_mut(pod) {
                        worker.tell(&self.setting, membership);
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

    /// The processes of those who get a place with these actions, of whom nothing was said yet.
    pub(crate) fn newcomers(&mut self, actions: &[Action]) -> Option<String> {
        let mut told = Vec::new();
        for action in actions {
            if let Action::IssueMembership { pod, .. } = action
                && let Some(worker) = self.workers.get_mut(pod)
                && let Some(pids) = worker.introduce()
            {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                told.push(format!("{pod} {}", pids.join(" ")));
            }
        }
        (!told.is_empty()).then(|| format!("Processes: {}", told.join(", ")))
    }

    /// Asks everybody to leave.
    pub(crate) fn dismiss(&mut self) {
        self.workers.values_mut().for_each(Worker::delete);
    }

    /// Ends everybody at once.
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
