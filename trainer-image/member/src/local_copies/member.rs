//! Begins copies at the ends of steps, and reports them.

use std::time::{Duration, Instant};

use roundhouse_report::Reporter;

use super::writer::Ended;
use super::{Begun, LocalCopies, MIB};
use crate::checkpointing::Checkpointing;
use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::member::Member;
use crate::state::State;
use crate::world::{Saving, SavingSum, World};

impl<R: Rendezvous> Member<'_, R> {
    /// Whether the job keeps copies.
    pub(crate) fn keeps_copies(&self) -> bool {
        self.copies().is_some()
    }

    pub(crate) fn copies(&self) -> Option<&LocalCopies> {
        self.checkpointing.as_ref()?.copies.as_ref()
    }

    pub(crate) fn copies_mut(&mut self) -> Option<&mut LocalCopies> {
        self.checkpointing.as_mut().and_then(copies_of)
    }

    /// Whether a copy begins after the step with this sum: all ranks conclude the same.
    pub(crate) fn copies_now(&self, sum: &SavingSum) -> bool {
        let step = self.local_state.position.step;
        let is_due = self.copies().is_some_and(|copies| copies.is_due_at(step));
        is_due && sum.num_copying == 0
    }

    /// Begins a copy of the state of the last committed step, if one is due.
    ///
    /// # Errors
    /// [`Failure::State`] if the state cannot be copied.
    pub(crate) fn copy_locally<S: State>(
        &mut self,
        sum: &SavingSum,
        state: &S,
    ) -> Result<(), Failure> {
        let rank = self.world()?.rank();
        let begins = self.copies_now(sum);
        let step = self.local_state.position.step;
        let copies = self.checkpointing.as_mut().and_then(copies_of);
        let Some(copies) = copies.filter(|copies| copies.is_due_at(step)) else {
            return Ok(());
        };
        if !begins {
            if copies.writes(state.layout()) {
                self.reporter.copy_skipped();
            }
            return Ok(());
        }
        let started = Instant::now();
        let head = self.local_state.chain.head();
        let num_copies = copies.num_copies();
        match copies.begin(rank, &head, &self.local_state, state)? {
            Begun::Writing => self.reporter.copy_begun(started.elapsed()),
            Begun::OfAnother => {}
            Begun::NoRoom { needed, limit } => self.reporter.copy_failed(&format!(
                "this pod needs {} MiB for {num_copies} copies, and checkpoint.local.sizeLimit is {} MiB: raise it",
                needed.div_ceil(MIB),
                limit / MIB,
            )),
        }
        Ok(())
    }

    /// Reports what the ranks of this worker conclude from a sum: whether the last copy has all
    /// parts. Only the worker with rank 0 adds to this sum, because the status shows its copies.
    pub(crate) fn conclude_copy(&mut self, sum: &SavingSum) {
        let is_counted = self.world.as_ref().is_some_and(World::is_in_first_replica);
        let Some(copies) = self.copies().filter(|_| is_counted && sum.num_copying == 0) else {
            return;
        };
        let are_in_two_pods = copies.have_holders();
        self.reporter
            .copy_ended(sum.num_copies_failed, are_in_two_pods);
    }
}

impl LocalCopies {
    /// Reports what the thread has done since the last call, and waits for at most `time` until it
    /// has done all.
    pub(crate) fn report(&mut self, reporter: &mut Reporter, time: Duration) {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(ended) = self.next_result(left) else {
                return;
            };
            self.report_end(reporter, ended);
            if time.is_zero() || !self.is_writing() {
                return;
            }
        }
    }

    fn report_end(&self, reporter: &mut Reporter, ended: Ended) {
        match ended {
            Ended::Written {
                step,
                duration,
                result: Ok(()),
                stored,
            } => {
                reporter.copied(step, duration);
                if self.have_pairs() {
                    let stored = stored.transpose();
                    let stored = stored.map(Option::flatten).map_err(|it| it.to_string());
                    reporter.holder_has(stored);
                }
            }
            Ended::Written { result, .. } | Ended::Shared(result) => {
                if let Err(error) = result {
                    reporter.copy_failed(&error.to_string());
                }
            }
        }
    }

    /// This rank's vote on copies. `is_counted`: whether the status shows the copies of its worker.
    pub(crate) fn note_in(&self, saving: &mut Saving, is_counted: bool) {
        saving.is_copying = self.is_writing();
        saving.copy_failed = is_counted && self.has_failed();
    }
}

pub(crate) const fn copies_of(checkpointing: &mut Checkpointing) -> Option<&mut LocalCopies> {
    checkpointing.copies.as_mut()
}
