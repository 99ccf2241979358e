//! A step that other processes of the replica may have committed: the sums of the step have
//! succeeded in this process, but the replica was lost before this process had the votes of all.
//!
//! ```text
//! process 0    sums of step 8    vote ──►    has both votes: commits step 8
//! process 1    sums of step 8    ◄─ lost     is ready for step 8: has step 7 and what step 8 needs
//! ```
//! So a ready process saves its part of both steps. The next life of the replica continues from the
//! newest step of which it finds each part.

use roundhouse_member::world::StepOutcome;
use tch::Tensor;

use super::Trainer;
use super::step::Begun;
use crate::failure::Failure;
use crate::update::Signals;

/// What a process knows about a step before it has the votes of its replica.
#[derive(Debug)]
pub(super) struct Ready<'a> {
    pub(super) end: &'a StepOutcome,
    pub(super) local_loss: f64,
    pub(super) gradient_norm: f64,
    pub(super) divisor: Option<&'a Tensor>,
}

impl Trainer<'_> {
    /// Saves this process' part of the last step, and then makes the step that it is ready for. The
    /// end of training saves the part of that step, too. If the step fails, nothing else is saved.
    pub(super) fn make_ready(&mut self, begun: Begun, ready: &Ready<'_>) {
        self.member.save_part(&self.work.tensors);
        // What makes a step fail fails it in all processes, and the next life reports it.
        let _ = self.make(begun, ready);
    }

    fn make(&mut self, mut begun: Begun, ready: &Ready<'_>) -> Result<(), Failure> {
        let batch = begun.batch.clone();
        let judged = self.judge(&batch, ready.end, ready.local_loss, ready.gradient_norm)?;
        self.uncounted_updates += 1;
        if judged.updates() {
            let signals = Signals {
                skip: None,
                divisor: ready.divisor,
            };
            self.apply(&mut begun, signals)?;
        }
        self.count(&batch, judged.verdict, judged.finite);
        self.member.note_ready(&batch, judged.loss);
        self.uncounted_updates -= 1;
        Ok(())
    }
}
