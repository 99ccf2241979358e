//! The signals that PID 1 handles.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::failure::Failure;

/// Streams of the signals. Signals that arrive before they are read are kept.
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
