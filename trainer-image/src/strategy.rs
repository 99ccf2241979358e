//! Data parallelism: from (model, world, batch) to synchronized gradients.
//!
//! Each rank computes its part of the batch; the Reducer sums the gradients while backward runs
//! and divides by W. The loss of a part is `sum · W / G`, so what comes out is the mean over all G
//! samples however unevenly they are split (G: the batch at hand, smaller at an epoch's end).

use roundhouse_c10d::{Reducer, ReducerOptions};
use roundhouse_contract::trainer::Ddp;
use roundhouse_elastic::micro::micro_batches;
use roundhouse_elastic::shard::shard;
use roundhouse_elastic::{Batch, Permutation, straggler};
use roundhouse_member::faults::{self, Point};
use roundhouse_member::sections::{Section, Sections};
use tch::{Reduction, TchError, Tensor};

use crate::data::{Samples, Split};
use crate::failure::Failure;
use crate::group::C10dGroup;
use crate::model::{Model, Parameters};

/// The ranks of a generation, over c10d.
pub type World = roundhouse_member::World<C10dGroup>;

const BYTES_PER_MIB: usize = 1 << 20;
/// libtorch's default: no class is left out.
const IGNORE_NO_CLASS: i64 = -100;

/// Replicas of the model on all ranks of a world.
#[derive(Debug)]
pub struct DataParallel {
    /// None in a world of one.
    reducer: Option<Reducer>,
    world_size: u32,
    micro_batch_size: Option<u32>,
}

impl DataParallel {
    /// Replicas that synchronize the gradients of `parameters`, which are equal on all ranks.
    ///
    /// # Errors
    /// The ranks' parameters have different shapes, or a rank is gone.
    pub fn new(
        world: &World,
        parameters: &Parameters,
        ddp: &Ddp,
        micro_batch_size: Option<u32>,
    ) -> Result<Self, Failure> {
        let Ddp {
            bucket_cap_mib,
            first_bucket_mib,
        } = ddp;
        let bytes = |mib: u32| mib as usize * BYTES_PER_MIB;
        let options = ReducerOptions {
            bucket_cap_bytes: bytes(*bucket_cap_mib),
            first_bucket_bytes: bytes(*first_bucket_mib),
            gradient_as_bucket_view: true,
        };
        let reducer = world
            .group()
            .map(|group| Reducer::new(parameters.tensors(), group.process_group(), &options))
            .transpose()
            .map_err(|error| explain(world, error))?;
        Ok(Self {
            reducer,
            world_size: world.size(),
            micro_batch_size,
        })
    }

    /// One pass over one sample, whose gradients are thrown away: only after its first pass does the Reducer
    /// lay out its buckets for good, and sums over three or more ranks depend on the layout. So that the
    /// first step of a group is bit for bit what it would have been without a new group, that is done before.
    /// The models' forward pass changes nothing.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn warm_up(
        &mut self,
        world: &World,
        model: &mut dyn Model,
        split: &Split,
    ) -> Result<(), Failure> {
        if self.reducer.is_none() {
            return Ok(());
        }
        let sample = split.at_places(0..1, &Permutation::new(split.num_samples(), 0, 0))?;
        let loss = self.forward(world, model, &sample)?;
        self.backward(world, &loss, 1.0, true)?;
        roundhouse_c10d::zero_grad(model.parameters_mut().tensors_mut())?;
        Ok(world.check()?)
    }

    /// How unevenly a batch of so many samples is split; see [`straggler::unevenness`].
    #[must_use]
    pub fn unevenness(&self, num_samples: u64) -> Option<f64> {
        straggler::unevenness(num_samples, self.world_size, self.micro_batch_size)
    }

    /// Leaves in `model` the mean gradient of the batch, the same on all ranks; returns the sum of
    /// the losses of this rank's samples. Over NCCL the gradients of a world that breaks may be garbage, and
    /// only the collective at the step's end tells: nothing is to be done with them before.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone: the step is lost, the weights are as before.
    pub fn gradients(
        &mut self,
        world: &World,
        model: &mut dyn Model,
        split: &Split,
        order: &Permutation,
        batch: &Batch,
        sections: &mut Sections,
    ) -> Result<f64, Failure> {
        let part = shard(&batch.places, world.rank(), world.size());
        let scale = scale(world, batch);
        roundhouse_c10d::zero_grad(model.parameters_mut().tensors_mut())?;
        let mut loss_sum = 0.0;
        let mut pieces = micro_batches(&part, self.micro_batch_size)
            .into_iter()
            .peekable();
        faults::point(Point::Forward, world.rank(), batch.step);
        while let Some(piece) = pieces.next() {
            let samples = sections.time(Section::Data, || split.at_places(piece, order))?;
            let is_last = pieces.peek().is_none();
            let loss = sections.time(Section::Forward, || self.forward(world, model, &samples))?;
            if is_last {
                faults::point(Point::Backward, world.rank(), batch.step);
            }
            loss_sum += sections.time(Section::Backward, || {
                self.backward(world, &loss, scale, is_last)?;
                // On a GPU the host waits here until the pass is done.
                Ok::<f64, Failure>(loss.f_double_value(&[])?)
            })?;
        }
        if let Some(reducer) = &mut self.reducer {
            let waited = reducer.waited();
            let waited = waited.map_err(|error| explain(world, error))?;
            sections.waited_in_backward(waited.unwrap_or_default());
        }
        Ok(loss_sum)
    }

    /// Leaves in `model` this rank's own part of the gradient of the batch, which no other rank has added to.
    ///
    /// # Errors
    /// libtorch refuses an operation.
    pub fn own_gradients(
        &mut self,
        world: &World,
        model: &mut dyn Model,
        split: &Split,
        order: &Permutation,
        batch: &Batch,
    ) -> Result<(), Failure> {
        let part = shard(&batch.places, world.rank(), world.size());
        let scale = scale(world, batch);
        roundhouse_c10d::zero_grad(model.parameters_mut().tensors_mut())?;
        for piece in micro_batches(&part, self.micro_batch_size) {
            let samples = split.at_places(piece, order)?;
            let scores_bc = model.forward(&samples.images_bchw)?;
            let loss = loss_sum(&scores_bc, &samples.labels_b)?;
            self.backward(world, &loss, scale, false)?;
        }
        Ok(())
    }

    /// Sum of the losses of some samples.
    fn forward(
        &mut self,
        world: &World,
        model: &dyn Model,
        samples: &Samples,
    ) -> Result<Tensor, Failure> {
        if let Some(reducer) = &mut self.reducer {
            let prepared = reducer.prepare_for_forward();
            prepared.map_err(|error| explain(world, error))?;
        }
        let scores_bc = model.forward(&samples.images_bchw)?;
        Ok(loss_sum(&scores_bc, &samples.labels_b)?)
    }

    fn backward(
        &mut self,
        world: &World,
        loss: &Tensor,
        scale: f64,
        is_last: bool,
    ) -> Result<(), Failure> {
        // Only the last micro-batch synchronizes; the others add up on this rank.
        if let (Some(reducer), true) = (&mut self.reducer, is_last) {
            let prepared = reducer.prepare_for_backward();
            prepared.map_err(|error| explain(world, error))?;
        }
        let done = roundhouse_c10d::backward(&loss.f_mul_scalar(scale)?);
        done.map_err(|error| explain(world, error))
    }
}

/// What the loss of a part is multiplied by, so that the mean over the ranks is that over the batch.
fn scale(world: &World, batch: &Batch) -> f64 {
    f64::from(world.size()) / batch.num_samples() as f64
}

/// What an error of the Reducer means. Garbage makes its own checks fail ("DDP expects same model across all ranks").
fn explain(world: &World, error: roundhouse_c10d::Error) -> Failure {
    if world.may_have_lost_a_peer() {
        Failure::peer_lost(error.to_string())
    } else {
        error.into()
    }
}

/// Sum of the cross-entropies of scores `[B, C]` against labels `[B]`; 0 for an empty batch.
///
/// # Errors
/// The sizes do not fit together.
pub fn loss_sum(scores_bc: &Tensor, labels_b: &Tensor) -> Result<Tensor, TchError> {
    scores_bc.f_cross_entropy_loss(
        labels_b,
        None::<Tensor>,
        Reduction::Sum,
        IGNORE_NO_CLASS,
        0.0,
    )
}
