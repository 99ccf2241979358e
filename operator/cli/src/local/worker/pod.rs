//! A worker as a pod for the planner. Pure.

use roundhouse_planner::{Container, Pod, PodPhase, Waiting};

use super::Worker;

impl Worker {
    /// The worker as the planner observes a pod.
    pub(crate) fn observed(&self) -> Pod {
        let waiting = self.restart_at.filter(|_| !self.back_off.is_zero());
        Pod {
            name: self.name.clone(),
            uid: format!("local-{}", self.number),
            resource_version: "1".to_owned(),
            ours: true,
            index: Some(self.index),
            attempt: self.attempt,
            deleting: self.kill_at.is_some(),
            gone_by: self.gone_by,
            created_at: Some(self.created_at),
            phase: if self.completed {
                PodPhase::Succeeded
            } else {
                PodPhase::Running
            },
            ready: self.ready,
            // The planner leaves it out of the next generation, and replaces it if it stays silent.
            unreachable: !self.is_responsive(),
            ready_at: self.ready_at,
            ip: Some(self.address()),
            container: Container {
                restarts: self.restarts,
                waiting: waiting.map(|_| Waiting {
                    reason: "CrashLoopBackOff".to_owned(),
                    message: String::new(),
                }),
                // A replica is one worker here, so no pod waits for others of its replica.
                started_at: None,
                termination: self.termination.clone(),
            },
            membership: self.membership.clone(),
            earlier: self.earlier.clone(),
            processes: self.processes.clone(),
            ..Pod::default()
        }
    }
}
