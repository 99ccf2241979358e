//! Events of pods in the fixture's world.

use roundhouse_contract::{
    ExitCode, ProcessEnd, ProcessRestarts, Progress, TerminationMessage, termination::Reason,
};

use super::World;
use crate::observed::{InitContainer, PodPhase, Processes, Termination, Waiting};

impl World {
    /// A pod's container is prepared.
    pub fn prepared(&mut self, at: usize) {
        self.change(at, |pod| {
            pod.phase = PodPhase::Running;
            pod.ready = true;
            pod.ip.get_or_insert_with(|| format!("10.0.0.{at}"));
        });
    }

    /// A pod's container ends; the kubelet has not restarted it yet.
    pub fn ends(&mut self, at: usize, exit_code: i32, step: u64) {
        let now = self.now;
        self.change(at, |pod| {
            let reason = ExitCode::from_code(exit_code).map_or(Reason::Crashed, Reason::of);
            pod.ready = false;
            pod.container.termination = Some(Termination {
                restarts: pod.container.restarts,
                exit_code,
                reason: "Error".to_owned(),
                message: Some(Box::new(TerminationMessage {
                    reason,
                    rank: Some(0),
                    generation: 1,
                    step,
                    message: "words".to_owned(),
                    progress: None,
                })),
                finished_at: Some(now),
            });
            if exit_code == 0 {
                pod.phase = PodPhase::Succeeded;
            }
        });
    }

    /// The termination message of a pod's ended container reports this progress.
    pub fn has_reported(&mut self, at: usize, progress: &Progress) {
        self.change(at, |pod| {
            let end = pod.container.termination.as_mut();
            if let Some(words) = end.and_then(|end| end.message.as_mut()) {
                words.progress = Some(progress.clone());
            }
        });
    }

    /// A live pod becomes Ready or unready.
    pub fn is_ready(&mut self, at: usize, ready: bool) {
        let now = self.now;
        self.change(at, |pod| {
            pod.ready = ready;
            pod.ready_at = Some(now);
        });
    }

    /// A process of a pod dies in a generation and the agent restarts it:
    /// its siblings are stranded.
    pub fn process_dies(&mut self, at: usize, exit_code: i32, generation: u64, step: u64) {
        self.ends_in_place(at, exit_code, (generation, step), false);
    }

    /// A process of a sharded worker dies, and its agent restarts all of them.
    pub fn replica_dies(&mut self, at: usize, exit_code: i32, generation: u64, step: u64) {
        self.ends_in_place(at, exit_code, (generation, step), true);
    }

    fn ends_in_place(
        &mut self,
        at: usize,
        exit_code: i32,
        (generation, step): (u64, u64),
        without_state: bool,
    ) {
        self.is_ready(at, false);
        let ended_at_seconds = self.now.as_second();
        let reason = ExitCode::from_code(exit_code).map_or(Reason::Crashed, Reason::of);
        self.change(at, |pod| {
            let report = ProcessRestarts {
                total: 1,
                preparing: vec![1],
                without_state,
                ended_life: String::new(),
                has_lives: false,
                ready: false,
                last: Some(ProcessEnd {
                    local_rank: 1,
                    exit_code,
                    message: TerminationMessage {
                        reason,
                        rank: Some(1),
                        generation,
                        step,
                        message: "words".to_owned(),
                        progress: None,
                    },
                    ended_at_seconds,
                }),
            };
            pod.processes = Some(Processes::of(report, pod.container.restarts));
        });
    }

    /// The agent of a worker that is not Ready reports that all of its processes train.
    pub fn agent_reports_ready(&mut self, at: usize) {
        self.change(at, |pod| {
            let report = ProcessRestarts {
                ready: true,
                ..ProcessRestarts::default()
            };
            pod.processes = Some(Processes::of(report, pod.container.restarts));
        });
    }

    /// The restarted process is in the lobby, beside its stranded siblings.
    pub fn process_is_prepared(&mut self, at: usize) {
        self.change(at, |pod| {
            if let Some(processes) = &mut pod.processes {
                processes.are_preparing = false;
            }
        });
    }

    /// The kubelet restarts a container that ended.
    pub fn restarts(&mut self, at: usize) {
        self.change(at, |pod| {
            pod.container.restarts += 1;
            pod.container.waiting = None;
        });
    }

    /// The kubelet waits before it restarts a container.
    pub fn waits(&mut self, at: usize, reason: &str) {
        let (reason, message) = (reason.to_owned(), String::new());
        self.change(at, |pod| {
            pod.container.waiting = Some(Waiting { reason, message })
        });
    }

    /// The kubelet reports an init container that the pod's trainer waits for.
    pub fn initializes(&mut self, at: usize, init: InitContainer) {
        self.change(at, |pod| pod.initializing = Some(Box::new(init)));
    }

    /// A pod is gone.
    pub fn vanishes(&mut self, at: usize) {
        if at < self.observed.pods.len() {
            self.observed.pods.remove(at);
        }
    }

    /// A pod fails for this reason: the node refuses it, or it is evicted.
    pub fn fails(&mut self, at: usize, reason: &str) {
        let (now, reason) = (self.now, reason.to_owned());
        self.change(at, |pod| {
            (pod.phase, pod.ready) = (PodPhase::Failed, false);
            pod.created_at = pod.created_at.or(Some(now));
            pod.node = pod.node.take().or(Some("n1".to_owned()));
            let message = String::new();
            pod.failed = Some(Waiting { reason, message });
        });
    }

    /// A client deletes a pod, which then terminates.
    pub fn is_deleted(&mut self, at: usize) {
        self.change(at, |pod| pod.deleting = true);
    }

    /// The pod has this node.
    pub fn is_on(&mut self, at: usize, node: &str) {
        self.change(at, |pod| pod.node = Some(node.to_owned()));
    }

    /// Kubernetes loses contact with a pod's node, or regains it.
    pub fn is_unreachable(&mut self, at: usize, unreachable: bool) {
        self.change(at, |pod| {
            pod.unreachable = unreachable;
            pod.ready = !unreachable && pod.phase == PodPhase::Running;
        });
    }

    /// The agent of a pod becomes silent, as if frozen, or answers again.
    pub fn agent_is_silent(&mut self, at: usize, silent: bool) {
        let now = self.now;
        self.change(at, |pod| {
            pod.unreachable = silent;
            pod.node_answers = silent;
            pod.agent_silent = silent;
            pod.ready = !silent;
            pod.ready_at = Some(now);
        });
    }
}
