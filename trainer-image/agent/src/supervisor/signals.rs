//! The signals that PID 1 listens to.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::failure::Failure;

/// Streams of them; what comes before they are read is kept.
pub(crate) struct Signals {
    pub(crate) child: Signal,
    pub(crate) terminate: Signal,
    pub(crate) interrupt: Signal,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(Failure::Signals);
        Ok(Self {
            child: listen(SignalKind::child())?,
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }
}
