//! When and how an operator ends.

use std::any::Any;

use futures::FutureExt;
use kube::runtime::reflector::Store;

use crate::calls::DEADLINE;
use crate::panics;
use crate::tasks::Ended as TaskEnded;
use crate::unreadable::Guarded;

/// The controller ends when it is asked to, and never else.
pub(super) fn of_controller(
    ended: Result<(), Box<dyn Any + Send>>,
    is_asked: bool,
) -> Result<(), TaskEnded> {
    let name = "controller";
    match ended {
        Ok(()) if is_asked => Ok(()),
        Ok(()) => Err(TaskEnded::Returned(name)),
        Err(panic) => Err(TaskEnded::Panicked {
            name,
            words: panics::words(&*panic),
        }),
    }
}

/// Ends when there is nothing left to wait for after `stop`: a controller that has not seen its first
/// list yet would wait for that for ever, and no step takes longer than its calls may.
pub(super) async fn stopped_late(stop: impl Future<Output = ()>, jobs: Store<Guarded>) {
    stop.await;
    if jobs.wait_until_ready().now_or_never().is_some() {
        tokio::time::sleep(DEADLINE).await;
    }
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
