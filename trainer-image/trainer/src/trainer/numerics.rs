//! Steps whose loss or gradient is not finite, and the loss scale. All decisions are functions of
//! the vote and of the training position, so all ranks decide the same.

use roundhouse_contract::trainer::{Compression, Precision};
use roundhouse_elastic::numerics::{Finite, Policy, Verdict};
use roundhouse_elastic::{Batch, LossScale, TrainingPosition};

use super::Trainer;
use crate::clip;
use crate::failure::Failure;
use crate::gradients::own_gradients;
use crate::sync::explain;

impl Trainer<'_> {
    /// The position from which a generation continues, with a loss scale if the configuration has
    /// one. The state may come from a run with another configuration.
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

    /// The factor of the gradients of the next step; `None`: gradients are not scaled.
    pub(super) fn loss_factor(&self, position: &TrainingPosition) -> Option<f64> {
        let num_averaged = self.sync.as_ref().map_or(1, |sync| sync.num_averaged());
        // Values that a rank sends in 16 bits must not grow with the number of ranks.
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

    /// Counts the step, with or without an update. A loss that is not finite has other causes than
    /// the loss scale, so it does not change the scale.
    pub(super) fn count(&mut self, batch: &Batch, verdict: Verdict, finite: Finite) {
        let is_skipped = verdict == Verdict::Skip;
        self.member.count(batch, is_skipped);
        if finite.loss {
            let settings = &self.work.config.loss_scaling;
            let position = &mut self.member.local_state.position;
            position.loss_scale = position.loss_scale.map(|it| it.after(is_skipped, settings));
        }
    }

    /// Notifies the sync of a skipped step or a new loss factor. `factor`: the loss factor of the
    /// counted step.
    pub(super) fn prepare_sync(
        &mut self,
        verdict: Verdict,
        factor: Option<f64>,
    ) -> Result<(), Failure> {
        let next = self.loss_factor(&self.member.local_state.position);
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

    /// The failure for a step that cannot be committed. The summed gradient does not show which
    /// rank's gradient was not finite, so each rank computes its own gradient again without a sum.
    pub(super) fn diverged(
        &mut self,
        batch: &Batch,
        local_loss: f64,
        loss: f64,
        gradient_norm: f64,
    ) -> Result<Failure, Failure> {
        let order = self.order(batch.epoch);
        let mut is_own = !local_loss.is_finite();
        let loss_factor = self.loss_factor(&self.member.local_state.position);
        // A sum over the ranks would make all results not finite, and not all ranks run this pass.
        self.work.task.train_among(None);
        // A process cannot run a pass alone if its replica shards weights or gradients.
        let can_run_alone = self.work.task.parameters().sharing().is_none();
        if let (Some(sync), false, true) = (&self.sync, is_own, can_run_alone) {
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
            skipped_before: self.member.local_state.position.skips.in_a_row,
            ranks: self.member.world()?.ranks_that(is_own)?,
        })
    }
}
