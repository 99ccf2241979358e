//! Reads the states of a pod's containers from the kubelet's status, for the operator and the
//! plugin alike.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};
use roundhouse_contract::labels::TRAINER_CONTAINER;

/// The kubelet's reason while it waits before it restarts a container.
const BACK_OFF: &str = "CrashLoopBackOff";

/// Whether a reason to wait is more than that the container's turn has not come.
#[must_use]
pub fn is_obstacle(waiting_reason: &str) -> bool {
    !matches!(waiting_reason, "" | "PodInitializing" | "ContainerCreating")
}

/// The init container, or the sidecar that starts before the trainer, for which the trainer waits.
#[derive(Clone, Copy, Debug)]
pub struct Initializing<'a> {
    pub container: &'a ContainerStatus,
    /// Its last termination, if that was a failure.
    pub failure: Option<&'a ContainerStateTerminated>,
}

impl<'a> Initializing<'a> {
    /// Finds the last init container that has started, unless it is done. A status does not say
    /// which of them are sidecars, but each one before the last has either ended or runs.
    #[must_use]
    pub fn of(status: &'a PodStatus) -> Option<Self> {
        let mut own = status.container_statuses.iter().flatten();
        let own = own.find(|container| container.name == TRAINER_CONTAINER);
        if own.is_some_and(|own| waiting(own).is_none_or(is_obstacle)) {
            return None;
        }
        let mut first = status.init_container_statuses.iter().flatten();
        let last = first.rfind(|container| has_started(container))?;
        let is_restarted = waiting(last) == Some(BACK_OFF);
        let is_done = !runs(last) && !is_restarted;
        let has_failed = |end: &&ContainerStateTerminated| end.exit_code != 0;
        let end = last_end(last);
        if is_done && !end.as_ref().is_none_or(has_failed) {
            return None;
        }
        Some(Self {
            container: last,
            // A sidecar that ends before its startup probe succeeds has failed, whatever its exit
            // code.
            failure: end.filter(|end| is_restarted || has_failed(end)),
        })
    }
}

/// Whether a container runs, and neither waits nor has ended.
#[must_use]
pub fn runs(container: &ContainerStatus) -> bool {
    let state = container.state.as_ref();
    state.is_some_and(|state| state.running.is_some())
}

fn has_started(container: &ContainerStatus) -> bool {
    let states = [container.state.as_ref(), container.last_state.as_ref()];
    let mut states = states.into_iter().flatten();
    states.any(|state| state.running.is_some() || state.terminated.is_some())
}

/// The reason why a container waits, if it waits.
fn waiting(container: &ContainerStatus) -> Option<&str> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    Some(waiting.reason.as_deref().unwrap_or_default())
}

fn last_end(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let now = container.state.as_ref();
    let now = now.and_then(|state| state.terminated.as_ref());
    now.or_else(|| container.last_state.as_ref()?.terminated.as_ref())
}
