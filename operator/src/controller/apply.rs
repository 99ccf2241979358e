//! Step 4, effects: carries out the actions of the plan, in order. A repeated creation finds the
//! object of the first one.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesOrdered;
use roundhouse_planner::{Action, ValidatedJob};

use self::outcome::Outcome;
use self::step::{Step, is_creation, name};
use self::writes::ObjectWriter;
use crate::controller::error::Error;
use crate::controller::slow_writes::SlowWrites;
use crate::job::JobKey;
use crate::metrics::work::Work;
use crate::settings::Settings;
use crate::watch::topology::Topology;

mod groups;
mod outcome;
mod patches;
mod step;
pub(super) mod writes;

/// Most writes of one job in flight.
const AT_ONCE: usize = 16;

/// Carries out what a plan decided.
pub struct Applier {
    pub(super) writer: ObjectWriter,
    pub(super) slow_writes: Arc<SlowWrites>,
    pub(super) topology: Topology,
    pub(super) work: Work,
    pub(super) settings: Arc<Settings>,
}

impl Applier {
    /// Carries out the actions, those of one kind together: all workers that are asked to leave
    /// should receive that at about the same time. Returns `Ok(false)` if the API server has other
    /// objects than were observed. Actions on objects that are as observed are carried out all the
    /// same: one pod with a late event delays no suspension.
    ///
    /// A failed creation stops neither removal nor training: a quota without room for the fourth
    /// worker is no reason for the other three to wait.
    ///
    /// # Errors
    /// A write was refused, got no answer or continues: the first one that failed, or the one that
    /// has continued for the longest time. Writes that do not depend on it are done all the same.
    pub async fn apply(
        &self,
        key: &JobKey,
        job: &ValidatedJob,
        actions: &[Action],
    ) -> Result<bool, Error> {
        let mut outcome = Outcome::default();
        let (mut all_created, mut all_issued) = (true, true);
        for group in actions.chunk_by(|one, next| name(one) == name(next)) {
            let Some(first) = group.first() else { continue };
            // No pod is created before the Service that names it, the NetworkPolicy that isolates
            // it, and its PodGroup. No pod is deleted before the remaining workers have their
            // membership.
            let waits = if is_creation(first) {
                !all_created
            } else {
                matches!(first, Action::DeletePod { .. }) && !all_issued
            };
            if waits {
                continue;
            }
            let done = self.in_turn(key, job, group).await;
            match first {
                Action::IssueMembership { .. } => all_issued &= done.is_all(),
                first if is_creation(first) => all_created &= done.is_all(),
                _ => {}
            }
            outcome = outcome.and(done);
        }
        outcome.result()
    }

    /// Carries out the first action alone: a write that is refused once would be refused for each
    /// worker. A creation that takes long may still be refused, so the others wait for it, unless
    /// one of its kind succeeded in spite of that. Other writes that take long run together.
    async fn in_turn(&self, key: &JobKey, job: &ValidatedJob, group: &[Action]) -> Outcome {
        let makes = group.first().filter(|action| is_creation(action));
        let all_at_once =
            makes.is_some_and(|action| self.slow_writes.is_slow_and_sure(key, name(action)));
        let (first, rest) = group.split_at(if all_at_once { group.len() } else { 1 });
        let first = self.together(key, job, first).await;
        let is_decided = makes.is_none() || first.num_pending() == 0;
        if first.is_refused() || !is_decided {
            return first;
        }
        first.and(self.together(key, job, rest).await)
    }

    /// Tries all actions, even if some fail, so that none is left half done. While the maximum
    /// number of writes continue, no more begin; each of them wakes the job when it ends.
    async fn together(&self, key: &JobKey, job: &ValidatedJob, actions: &[Action]) -> Outcome {
        let mut steps = actions.iter().map(|action| Step {
            applier: self,
            key,
            job,
            action,
        });
        let mut writes: FuturesOrdered<_> = steps.by_ref().take(AT_ONCE).map(Step::run).collect();
        let mut outcome = Outcome::default();
        while let Some(result) = writes.next().await {
            outcome = outcome.and(Outcome::of(result));
            if outcome.num_pending() < AT_ONCE
                && let Some(step) = steps.next()
            {
                writes.push_back(step.run());
            }
        }
        outcome
    }
}
