//! A step in doubt: this process has the sums of the step and has voted for it, but the replica was
//! lost before it had the votes of all. Others may have committed the step.
//!
//! ```text
//! process 0    sums of step 8    vote ──►    has both votes: commits step 8
//! process 1    sums of step 8    ◄─ lost     has its part of the state after step 7 or step 8
//! ```
//! So the process saves its part of both states. The next life of the replica continues from the
//! newest step of which it finds each part.

use roundhouse_elastic::Batch;
use roundhouse_member::world::StepOutcome;
use roundhouse_report::say_error;
use tch::Tensor;

use super::Trainer;
use super::end::Judged;
use super::step::Begun;
use crate::failure::Failure;
use crate::update::Signals;

/// What a process knows about a step before it has the votes of its replica.
#[derive(Debug)]
pub(super) struct InDoubt<'a> {
    pub(super) end: &'a StepOutcome,
    pub(super) local_loss: f64,
    pub(super) gradient_norm: f64,
    pub(super) divisor: Option<&'a Tensor>,
}

impl Trainer<'_> {
    /// Saves this process' part of the state before the step, and then applies the step.
    /// [`Trainer::run`] saves the part after it.
    pub(super) fn finish_in_doubt(&mut self, begun: Begun, step: &InDoubt<'_>) {
        self.member.save_part(&self.work.tensors);
        let number = begun.batch.step;
        if let Err(failure) = self.try_finish(begun, step) {
            say_error(&format!(
                "this process cannot save its part of step {number}: {failure}"
            ));
        }
    }

    fn try_finish(&mut self, mut begun: Begun, step: &InDoubt<'_>) -> Result<(), Failure> {
        let judged = self.judge(&begun.batch, step.end, step.local_loss, step.gradient_norm)?;
        if judged.updates() {
            let signals = Signals {
                skip: None,
                divisor: step.divisor,
            };
            self.apply(&mut begun, signals)?;
        }
        self.count_in_doubt(&begun.batch, &judged);
        Ok(())
    }

    /// Counts a step without a report, before this process ends.
    pub(super) fn count_in_doubt(&mut self, batch: &Batch, judged: &Judged) {
        self.count(batch, judged.verdict, judged.finite);
        self.member.note_in_doubt(batch, judged.loss);
        self.uncounted_updates = self.uncounted_updates.saturating_sub(1);
    }
}
