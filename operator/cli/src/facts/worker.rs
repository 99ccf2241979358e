//! The state of one worker, from its pod.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodCondition};
use kube::ResourceExt;
use roundhouse_contract::{Action, Membership, ReplicaPlace, TerminationMessage, labels};

use self::init::InitContainer;

pub(crate) mod init;

/// The state of one worker.
#[derive(Clone, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "Kubernetes reports these facts separately"
)]
pub(crate) struct Worker {
    /// Name of the pod.
    pub(crate) pod: String,
    /// Index of the worker in its job.
    pub(crate) index: u32,
    /// Number of earlier pods of this worker.
    pub(crate) attempt: u32,
    /// Node of the pod, once the scheduler has chosen one.
    pub(crate) node: Option<String>,
    pub(crate) phase: String,
    /// Whether the trainer container is ready.
    pub(crate) is_ready: bool,
    /// Whether the trainer container runs.
    pub(crate) is_running: bool,
    /// Whether the pod has a deletion timestamp.
    pub(crate) is_leaving: bool,
    /// Whether Kubernetes has lost contact with the node.
    pub(crate) is_unreachable: bool,
    /// Restarts of the trainer container.
    pub(crate) restarts: u32,
    /// Reason and message of a container that waits.
    pub(crate) waiting: Option<(String, String)>,
    /// The scheduler's message, if it finds no node for the pod.
    pub(crate) unschedulable: Option<String>,
    /// Reason and message of a pod that Kubernetes ended.
    pub(crate) failed: Option<(String, String)>,
    /// The last end of the trainer container.
    pub(crate) end: Option<End>,
    /// The failed init container or sidecar that the trainer container waits for.
    pub(crate) init: Option<InitContainer>,
    /// The newest membership document of the worker.
    pub(crate) place: Option<Membership>,
    /// Its place in a replica of several pods.
    pub(crate) replica: Option<ReplicaPlace>,
}

/// The end of a container.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// Exit code; 128 + n for signal n.
    pub(crate) code: i32,
    /// Kubernetes' reason, such as `OOMKilled`.
    pub(crate) reason: String,
    /// The agent's termination message.
    pub(crate) message: Option<TerminationMessage>,
    pub(crate) at: Option<Timestamp>,
}

impl Worker {
    /// The nonce of the membership document; empty if there is none. The agent requires it for
    /// every path except metrics and progress.
    pub(crate) fn nonce(&self) -> &str {
        self.place.as_ref().map_or("", |place| &place.nonce)
    }

    pub(crate) fn of(pod: &Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let init = init::failed(&status);
        let conditions = status.conditions.unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let inits = status.init_container_statuses.unwrap_or_default();
        let trainer = containers
            .iter()
            .find(|it| it.name == labels::TRAINER_CONTAINER);
        let phase = status.phase.unwrap_or_else(|| "Pending".to_owned());
        let place = pod.annotations().get(labels::MEMBERSHIP);
        let failed = (phase == "Failed").then(|| {
            (
                status.reason.unwrap_or_default(),
                status.message.unwrap_or_default(),
            )
        });
        let is_true = |kind: &str| state_of(&conditions, kind) == Some("True");
        let unready = state_of(&conditions, "Ready") == Some("False");
        Self {
            pod: pod.name_any(),
            index: number(pod, labels::WORKER_INDEX),
            attempt: number(pod, labels::ATTEMPT),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            is_ready: trainer.is_some_and(|it| it.ready) && phase == "Running",
            is_running: trainer.is_some_and(|it| state(it).running.is_some()),
            is_leaving: pod.metadata.deletion_timestamp.is_some(),
            // The node controller sets Ready to False, while ContainersReady keeps the kubelet's
            // last report.
            is_unreachable: unready
                && is_true("ContainersReady")
                && pod
                    .spec
                    .as_ref()
                    .is_none_or(|it| it.readiness_gates.is_none()),
            restarts: trainer.map_or(0, |it| u32::try_from(it.restart_count).unwrap_or(0)),
            waiting: inits
                .iter()
                .chain(trainer)
                .find_map(waiting)
                .or_else(|| containers.iter().filter_map(waiting).find(never_began)),
            unschedulable: (phase == "Pending")
                .then(|| unschedulable(&conditions))
                .flatten(),
            failed,
            end: trainer.and_then(end),
            init,
            place: place.and_then(|text| Membership::parse(text).ok().flatten()),
            replica: pod
                .annotations()
                .get(labels::REPLICA)
                .and_then(|text| ReplicaPlace::parse(text)),
            phase,
        }
    }

    /// The worker's membership in a generation, if it belongs to the container that runs now.
    pub(crate) fn place_in(&self, generation: u64) -> Option<&Membership> {
        let place = self.place.as_ref()?;
        let is_member = generation > 0
            && place.generation == generation
            && place.action == Action::Join
            && place.incarnation.restarts == self.restarts
            && !self.is_leaving;
        is_member.then_some(place)
    }
}

fn number(pod: &Pod, label: &str) -> u32 {
    let text = pod.labels().get(label);
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn state_of<'a>(conditions: &'a [PodCondition], kind: &str) -> Option<&'a str> {
    let found = conditions
        .iter()
        .find(|condition| condition.type_ == kind)?;
    Some(&found.status)
}

fn unschedulable(conditions: &[PodCondition]) -> Option<String> {
    let found = conditions.iter().find(|it| {
        it.type_ == "PodScheduled"
            && it.status == "False"
            && it.reason.as_deref() == Some("Unschedulable")
    })?;
    found.message.clone()
}

fn state(container: &ContainerStatus) -> ContainerState {
    container.state.clone().unwrap_or_default()
}

fn waiting(container: &ContainerStatus) -> Option<(String, String)> {
    let waiting = state(container).waiting?;
    let reason = waiting.reason?;
    // Every container passes through these states.
    let is_ordinary = matches!(reason.as_str(), "ContainerCreating" | "PodInitializing");
    (!is_ordinary).then(|| (reason, waiting.message.unwrap_or_default()))
}

/// Whether a container other than the trainer has never begun, so the pod stays Pending. A crash of
/// such a container does not stop the trainer.
fn never_began((reason, _): &(String, String)) -> bool {
    reason != "CrashLoopBackOff"
}

fn end(container: &ContainerStatus) -> Option<End> {
    let last = || container.last_state.clone().unwrap_or_default().terminated;
    let ended = state(container).terminated.or_else(last)?;
    Some(End {
        code: ended.exit_code,
        reason: ended.reason.unwrap_or_default(),
        message: ended.message.as_deref().and_then(TerminationMessage::parse),
        at: ended.finished_at.map(|at| at.0),
    })
}
