//! The open connections of a server.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All open connections of the server.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    state: Arc<Mutex<State>>,
    most: usize,
}

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
    /// `most` is the number of connections at a time.
    pub(super) fn new(most: usize) -> Self {
        Self {
            state: Arc::default(),
            most,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if there are too many connections, or the server has ended.
    pub(super) fn open(&self, stream: &TcpStream) -> Option<Connection> {
        let mut state = self.state();
        if state.has_ended || state.open.len() >= self.most {
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
