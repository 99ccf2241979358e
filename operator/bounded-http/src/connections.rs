//! The open connections, oldest first.

use std::collections::VecDeque;

use tokio::task::AbortHandle;

/// At most `max` tasks of connections. Dropping it closes all of them.
#[derive(Debug)]
pub(crate) struct Connections {
    max: usize,
    oldest_first: VecDeque<AbortHandle>,
}

impl Connections {
    pub(crate) const fn new(max: usize) -> Self {
        Self {
            max,
            oldest_first: VecDeque::new(),
        }
    }

    /// Adds a connection. Closes the oldest ones until there is room for it.
    pub(crate) fn push(&mut self, connection: AbortHandle) {
        if self.oldest_first.len() >= self.max {
            self.oldest_first.retain(|open| !open.is_finished());
        }
        while self.oldest_first.len() >= self.max {
            if let Some(oldest) = self.oldest_first.pop_front() {
                oldest.abort();
            }
        }
        self.oldest_first.push_back(connection);
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        for connection in &self.oldest_first {
            connection.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;

    use super::*;

    fn pending() -> JoinHandle<()> {
        tokio::spawn(std::future::pending())
    }

    #[tokio::test]
    async fn the_oldest_connection_makes_room() {
        let tasks: Vec<_> = (0..4).map(|_| pending()).collect();
        let mut connections = Connections::new(3);
        for task in &tasks {
            connections.push(task.abort_handle());
        }
        tokio::task::yield_now().await;
        let closed: Vec<bool> = tasks.iter().map(JoinHandle::is_finished).collect();
        assert_eq!(closed, [true, false, false, false]);
    }

    #[tokio::test]
    async fn finished_connections_make_room_first() {
        let oldest = pending();
        let finished = tokio::spawn(async {});
        let mut connections = Connections::new(2);
        connections.push(oldest.abort_handle());
        connections.push(finished.abort_handle());
        finished.await.unwrap();
        connections.push(pending().abort_handle());
        tokio::task::yield_now().await;
        assert!(!oldest.is_finished());
    }

    #[tokio::test]
    async fn all_connections_end_with_the_server() {
        let task = pending();
        let mut connections = Connections::new(2);
        connections.push(task.abort_handle());
        drop(connections);
        assert!(task.await.unwrap_err().is_cancelled());
    }
}
