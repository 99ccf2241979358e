//! What is known of slow writes: those that continue, the errors that no reconcile has taken yet,
//! and which kinds of writes take long.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{Answer, Write};
use crate::job::JobKey;
use crate::runtime::api::calls::CREATE_DEADLINE;
use crate::runtime::api::error::CallError;

/// Older errors are not returned, and older durations do not count.
const FORGOTTEN: Duration = CREATE_DEADLINE.saturating_mul(2);

/// Writes of one job and action: they pass the same webhooks.
type Kind = (JobKey, &'static str);

#[derive(Debug, Default)]
pub(super) struct Known {
    under_way: HashMap<Write, (Instant, AbortHandle)>,
    failed: HashMap<Write, (Instant, CallError)>,
    /// Kinds of which a write took long and succeeded, and when that was.
    sure: HashMap<Kind, Instant>,
    /// Kinds of which a write got no answer, and when that was.
    silent: HashMap<Kind, Instant>,
}

impl Known {
    fn forget(&mut self, now: Instant) {
        let is_recent = |at: &Instant| now.duration_since(*at) < FORGOTTEN;
        self.sure.retain(|_, at| is_recent(at));
        self.silent.retain(|_, at| is_recent(at));
        self.failed.retain(|_, (at, _)| is_recent(at));
    }

    /// Why the write does not begin: it continues or has failed. An error is returned once, for all
    /// failed writes of its kind: the next try must not fail because of an old answer.
    pub(super) fn error_of(&mut self, write: &Write, now: Instant) -> Option<CallError> {
        self.forget(now);
        if let Some((since, _)) = self.under_way.get(write) {
            return Some(CallError::Pending(now.duration_since(*since)));
        }
        let (_, error) = self.failed.remove(write)?;
        self.failed.retain(|other, _| kind(other) != kind(write));
        Some(error)
    }

    pub(super) fn was_silent(&self, write: &Write) -> bool {
        self.silent.contains_key(&kind(write))
    }

    pub(super) fn is_slow_and_sure(
        &mut self,
        job: &JobKey,
        action: &'static str,
        now: Instant,
    ) -> bool {
        self.forget(now);
        self.sure.contains_key(&(job.clone(), action))
    }

    pub(super) fn begin(&mut self, write: Write, since: Instant, task: AbortHandle) {
        self.under_way.insert(write, (since, task));
    }

    /// A write has ended. Returns whether a reconcile has waited for it.
    pub(super) fn end(
        &mut self,
        write: Write,
        to: oneshot::Sender<Answer>,
        result: Answer,
        now: Instant,
    ) -> bool {
        self.under_way.remove(&write);
        let kind = kind(&write);
        if matches!(result, Err(CallError::Deadline(_))) {
            self.silent.insert(kind.clone(), now);
        }
        match to.send(result) {
            Ok(()) => return true,
            // The caches show the object: a later write of it is another one.
            Err(Ok(())) => _ = self.sure.insert(kind, now),
            // A timeout is no refusal: the write is tried again at once, with more time.
            Err(Err(CallError::Deadline(_))) => {}
            Err(Err(error)) => _ = self.failed.insert(write, (now, error)),
        }
        false
    }

    pub(super) fn stop(&mut self) {
        for (_, (_, task)) in self.under_way.drain() {
            task.abort();
        }
    }
}

fn kind(write: &Write) -> Kind {
    (write.job.clone(), write.action)
}
