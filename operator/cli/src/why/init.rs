//! Diagnoses an init container that fails, so that the trainer waits for it.

use super::{Diagnosis, Situation};
use crate::facts::worker::Worker;
use crate::facts::worker::init::InitContainer;
use crate::view::exit;

/// Applies to a worker whose init container or sidecar has failed.
pub(super) fn rule(worker: &Worker) -> Option<Diagnosis> {
    let InitContainer {
        name,
        code,
        reason,
        words,
        restarts,
    } = worker.init.as_ref()?;
    let pod = &worker.pod;
    let summary = format!(
        "The init container {name} of {pod} fails (exit code {code}): the trainer waits for it."
    );
    let killed = (reason == "OOMKilled").then(|| exit::words(*code, reason));
    let evidence = [killed.unwrap_or_default(), words.clone()];
    let diagnosis = Diagnosis::new(Situation::InitContainerFailed, summary);
    let diagnosis = evidence.into_iter().fold(diagnosis, Diagnosis::shown_by);
    Some(
        diagnosis
            .shown_by(format!("{name} was restarted {restarts} times"))
            .advise(format!("See its log: `kubectl logs {pod} -c {name}`."))
            .advise("Correct that container in workers.template. More restarts than failurePolicy.backoffLimit fail the job."),
    )
}
