//! The named background tasks. Each runs until the operator stops. A task that ends earlier ends
//! the operator: otherwise the operator would continue with a cache that no watch fills, while its
//! probes report that all is well.

use std::collections::HashMap;

use tokio::task::{Id, JoinError, JoinSet};

use crate::runtime::panics;

/// A background task has ended too early.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Ended {
    #[error("the task {0:?} ended, which is a bug of Roundhouse")]
    Returned(&'static str),
    #[error("the task {name:?} panicked, which is a bug of Roundhouse: {words}")]
    Panicked {
        name: &'static str,
        /// The message of the panic.
        words: String,
    },
}

/// The background tasks. They end when this is dropped.
#[derive(Debug, Default)]
pub struct Tasks {
    running: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let id = self.running.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Waits until a task ends.
    pub async fn ended(&mut self) -> Ended {
        let Some(ended) = self.running.join_next_with_id().await else {
            return std::future::pending().await;
        };
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, ())| *id);
        let name = self.names.remove(&id).unwrap_or_default();
        match ended.map_err(JoinError::try_into_panic) {
            Err(Ok(panic)) => Ended::Panicked {
                name,
                words: panics::words(&*panic),
            },
            Ok(_) | Err(Err(_)) => Ended::Returned(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ended_or_panicked_task_is_named() {
        let mut tasks = Tasks::default();
        tasks.spawn("watch of pods", std::future::pending());
        tasks.spawn("http", async {});
        assert_eq!(tasks.ended().await, Ended::Returned("http"));
        tasks.spawn("progress", async { panic!("an answer of {} bytes", 0) });
        let ended = tasks.ended().await;
        let expected =
            "the task \"progress\" panicked, which is a bug of Roundhouse: an answer of 0 bytes";
        assert_eq!(ended.to_string(), expected);
        assert!(futures::poll!(Box::pin(tasks.ended())).is_pending());
    }
}
