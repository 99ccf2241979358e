//! The open connections of a server.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most connections at a time. Each process of another pod has one, and perhaps one that it has
/// abandoned.
const MAX_CONNECTIONS: usize = 1 << 10;

/// All open connections of the server.
#[derive(Clone, Debug)]
pub(super) struct Connections(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    has_ended: bool,
    open: BTreeMap<u64, TcpStream>,
    next: u64,
}

/// Counts as open until it is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    all: Connections,
    id: u64,
}

impl Connections {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if there are too many connections, or the server has ended.
    pub(super) fn open(&self, stream: &TcpStream) -> Option<Connection> {
        let mut state = self.state();
        if state.has_ended || state.open.len() >= MAX_CONNECTIONS {
            return None;
        }
        let id = state.next;
        state.next += 1;
        state.open.insert(id, stream.try_clone().ok()?);
        Some(Connection {
            all: self.clone(),
            id,
        })
    }

    pub(super) fn have_ended(&self) -> bool {
        self.state().has_ended
    }

    /// Ends all connections: a thread that waits for its peer gets an error.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        for stream in std::mem::take(&mut state.open).into_values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.state().open.remove(&self.id);
    }
}
