//! An init container, or a sidecar that starts before the trainer, that fails.

use k8s_openapi::api::core::v1::ContainerStatus;

/// An init container that failed.
#[derive(Clone, Debug)]
pub(crate) struct InitContainer {
    /// Its name.
    pub(crate) name: String,
    /// Exit code of its last end.
    pub(crate) code: i32,
    /// Kubernetes' reason of that end.
    pub(crate) reason: String,
    /// The last line that it wrote, as far as Kubernetes has kept it.
    pub(crate) words: String,
    /// How often it was restarted.
    pub(crate) restarts: u32,
}

/// The init container whose failure the trainer container waits for: of those that have failed, the last one.
pub(super) fn failed(
    all: &[ContainerStatus],
    trainer: Option<&ContainerStatus>,
) -> Option<InitContainer> {
    let waiting = trainer.and_then(|trainer| trainer.state.as_ref()?.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
    let waits = trainer.is_none() || reason == Some("PodInitializing");
    all.iter().rev().find_map(of).filter(|_| waits)
}

fn of(container: &ContainerStatus) -> Option<InitContainer> {
    let state = container.state.as_ref();
    let now = state.and_then(|state| state.terminated.as_ref());
    let before = container.last_state.as_ref();
    let ended = now.or_else(|| before?.terminated.as_ref())?;
    let waiting = state.and_then(|state| state.waiting.as_ref()?.reason.as_deref());
    if ended.exit_code == 0 && waiting != Some("CrashLoopBackOff") {
        return None;
    }
    let mut lines = ended.message.iter().flat_map(|text| text.lines().rev());
    let last = lines.find(|line| !line.trim().is_empty());
    Some(InitContainer {
        name: container.name.clone(),
        code: ended.exit_code,
        reason: ended.reason.clone().unwrap_or_default(),
        words: last.unwrap_or_default().trim().to_owned(),
        restarts: u32::try_from(container.restart_count).unwrap_or(0),
    })
}
