//! Finds an init container, or a sidecar that starts before the trainer, that fails.

use k8s_openapi::api::core::v1::PodStatus;
use roundhouse_planner::kubelet::Initializing;

/// An init container that failed.
#[derive(Clone, Debug)]
pub(crate) struct InitContainer {
    pub(crate) name: String,
    /// Exit code of its last end.
    pub(crate) code: i32,
    /// Kubernetes' reason of that end.
    pub(crate) reason: String,
    /// The last line that it wrote, if Kubernetes has kept it.
    pub(crate) words: String,
    pub(crate) restarts: u32,
}

/// The init container whose failure the trainer container waits for.
pub(super) fn failed(status: &PodStatus) -> Option<InitContainer> {
    let Initializing { container, failure } = Initializing::of(status)?;
    let ended = failure?;
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
