//! When an operator ends, and with which result.

use std::any::Any;

use crate::runtime::api::calls::DEADLINE;
use crate::runtime::panics;
use crate::runtime::tasks::Ended as TaskEnded;

/// The result of the work on jobs. It is an error if the work ends although the operator was not
/// asked to stop.
pub(super) fn of_work(
    ended: Result<(), Box<dyn Any + Send>>,
    is_asked: bool,
) -> Result<(), TaskEnded> {
    let name = "work on jobs";
    match ended {
        Ok(()) if is_asked => Ok(()),
        Ok(()) => Err(TaskEnded::Returned(name)),
        Err(panic) => Err(TaskEnded::Panicked {
            name,
            words: panics::words(&*panic),
        }),
    }
}

/// Ends one [`DEADLINE`] after `stop`: a reconcile that runs longer than one call may take is not
/// awaited.
pub(super) async fn stopped_late(stop: impl Future<Output = ()>) {
    stop.await;
    tokio::time::sleep(DEADLINE).await;
}

pub(super) async fn shutdown_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
