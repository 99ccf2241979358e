//! What a worker tells: the status files of its processes, and which processes these are.

use roundhouse_contract::{Progress, RankStatus, paths};

use super::Worker;
use crate::local::launch::Setting;
use crate::local::pids;

impl Worker {
    pub(super) fn tells_ready(&self, setting: &Setting) -> bool {
        (0..setting.procs).all(|rank| {
            self.status(setting, rank)
                .is_some_and(|status| status.phase.is_ready())
        })
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
