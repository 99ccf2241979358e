//! What becomes of a step whose loss or gradient is not finite, and the scale of the loss. All of it follows from what
//! the ranks have agreed on and from the position, so all ranks conclude the same.

use roundhouse_contract::trainer::{Compression, Precision};
use roundhouse_elastic::numerics::{Finite, Policy, Verdict};
use roundhouse_elastic::{Batch, LossScale, TrainingPosition};

use super::Trainer;
use crate::clip;
use crate::failure::Failure;
use crate::gradients::own_gradients;
use crate::sync::explain;

impl Trainer<'_> {
    /// The position with which a generation continues: with a loss scale where the configuration has one, whatever the
    /// configuration of the state before was.
    pub(super) fn with_loss_scale(&self, position: TrainingPosition) -> TrainingPosition {
        let start = LossScale::start(&self.work.config.loss_scaling);
        TrainingPosition {
            loss_scale: self
                .scales_loss()
                .then(|| position.loss_scale.unwrap_or(start)),
            ..position
        }
    }

    fn scales_loss(&self) -> bool {
        self.work.config.precision == Precision::Fp16
    }

    /// What the gradients of the next step are multiplied by; `None`: they are not scaled.
    pub(super) fn loss_factor(&self, position: &TrainingPosition) -> Option<f64> {
        let num_averaged = self.sync.as_ref().map_or(1, |sync| sync.num_averaged());
        // What a rank sends in 16 bits must not grow with the number of ranks.
        let is_narrow = self.work.config.ddp.compression == Compression::Fp16;
        let scale = position.loss_scale.map(|it| it.scale);
        let scale = scale.or_else(|| is_narrow.then_some(1.0))?;
        Some(scale / f64::from(num_averaged))
    }

    pub(super) fn policy(&self) -> Policy {
        let config = &self.work.config;
        Policy {
            on_non_finite: config.on_non_finite,
            max_in_a_row: config.max_consecutive_skips.into(),
            scales_loss: self.scales_loss(),
        }
    }

    /// The step counts, with or without an update. A loss that is not finite says nothing of the scale.
    pub(super) fn count(&mut self, batch: &Batch, verdict: Verdict, finite: Finite) {
        let is_skipped = verdict == Verdict::Skip;
        self.member.count(batch, is_skipped);
        if finite.loss {
            let settings = &self.work.config.loss_scaling;
            let position = &mut self.member.held.position;
            position.loss_scale = position.loss_scale.map(|it| it.after(is_skipped, settings));
        }
    }

    /// Tells the sync what of a step that was counted matters to the next ones. `factor`: the loss factor of that step.
    pub(super) fn prepare_sync(
        &mut self,
        verdict: Verdict,
        factor: Option<f64>,
    ) -> Result<(), Failure> {
        let next = self.loss_factor(&self.member.held.position);
        let Some(sync) = &mut self.sync else {
            return Ok(());
        };
        let result = match (verdict, factor, next) {
            (Verdict::Skip, ..) => sync.skipped(),
            (_, Some(factor), Some(next)) => sync.rescaled(next / factor),
            _ => Ok(()),
        };
        let world = self.member.world()?;
        result.map_err(|error| explain(world, error))
    }

    /// Why a step cannot be committed. The gradient that the ranks have summed does not say whose was not finite,
    /// so each computes its own once more, for itself.
    pub(super) fn diverged(
        &mut self,
        batch: &Batch,
        local_loss: f64,
        loss: f64,
        gradient_norm: f64,
    ) -> Result<Failure, Failure> {
        let order = self.order(batch.epoch);
        let mut is_own = !local_loss.is_finite();
        let loss_factor = self.loss_factor(&self.member.held.position);
        // A sum over the ranks would spread one rank's trouble to all, and not all are in this pass.
        self.work.task.train_among(None);
        if let (Some(sync), false) = (&self.sync, is_own) {
            let mut inputs = self.work.inputs(batch, &order);
            inputs.loss_factor = loss_factor;
            own_gradients(&mut inputs, sync.as_ref())?;
            let norm = clip::gradient_norm(self.work.task.parameters())?;
            is_own = !norm.f_double_value(&[])?.is_finite();
        }
        Ok(Failure::Diverged {
            step: batch.step,
            loss,
            gradient_norm,
            skipped_before: self.member.held.position.skips.in_a_row,
            ranks: self.member.world()?.ranks_that(is_own)?,
        })
    }
}
