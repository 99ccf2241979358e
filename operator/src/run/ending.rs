//! When and how an operator ends.

use std::any::Any;

use crate::runtime::api::calls::DEADLINE;
use crate::runtime::panics;
use crate::runtime::tasks::Ended as TaskEnded;

/// The work on jobs ends when it is asked to, and never else.
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

/// Ends when there is nothing left to wait for after `stop`: no step takes longer than its calls may.
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
