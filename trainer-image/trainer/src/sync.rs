//! How the ranks of a world turn their parts of a batch into gradients that are the same on all of them.
//!
//! The loop asks a [`Sync`] which passes this rank makes, and calls it around the backward pass of each:
//! ```text
//! for pass in sync.passes(batch):
//!     sync.before_forward()
//!     loss = task.loss(source.fetch(pass.places)) · sync.scale(batch)
//!     backward(sync.before_backward(pass, loss, numbers))
//!     sync.after_backward(pass)
//! sync.finish()
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use roundhouse_c10d::{CommHook, PowerSgd, ReducerOptions};
use roundhouse_contract::TrainerConfig;
use roundhouse_contract::trainer::{Compression, Ddp as DdpConfig};
use roundhouse_member::World;
use roundhouse_member::world::RankVote;
use tch::{TchError, Tensor};

use crate::failure::Failure;
use crate::group::C10dGroup;
use crate::parameters::Parameters;

mod alone;
mod bucket_integers;
mod ddp;
mod slices;

pub use alone::Alone;
pub use ddp::{Ddp, DdpOptions};
pub use slices::{Exchange, Slices};

/// One forward and backward pass over a part of a rank's samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Places in the epoch's order. They may be empty.
    pub places: Range<u64>,
    /// Which fixed part of the global batch it is, for random numbers: see [`crate::Mode::Train`].
    pub slice: u64,
    /// Whether that part ends with this pass. One that does not fit into memory is computed in several.
    pub ends_slice: bool,
    /// Whether it is this rank's last of the step.
    pub is_last: bool,
}

/// What is known when the gradients of a step are complete.
#[derive(Debug, Default)]
pub struct Finished {
    /// The numbers of all ranks, in the order of the ranks, if they have travelled with the gradients.
    pub numbers: Option<Vec<Vec<f64>>>,
    /// The sum of the losses of the global batch in 64 bits, one element on the device, if it has travelled with the
    /// gradients.
    pub loss_sum: Option<Tensor>,
    /// Where the device commits steps, and there are peers: [`roundhouse_c10d::digest`] of what the sums over the ranks have
    /// left, which is the same on all of them.
    pub digest: Option<Tensor>,
}

/// Who decides that a step is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// The host: it reads what the ranks have agreed on before it launches the update.
    Host,
    /// The device: the update depends on a flag there, and the host reads the same flag a step later.
    Device,
}

/// Why gradients could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// A collective failed.
    #[error(transparent)]
    Group(#[from] roundhouse_c10d::Error),
    /// libtorch refused an operation.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
}

const BYTES_PER_MIB: usize = 1 << 20;

/// How gradients are packed and sent with a configuration, from this step of the training on.
#[must_use]
pub fn reducer_options(config: &TrainerConfig, step: u64) -> ReducerOptions {
    let DdpConfig {
        bucket_cap_mib,
        first_bucket_mib,
        compression,
        power_sgd,
        static_graph,
    } = config.ddp;
    let power_sgd = power_sgd.unwrap_or_default();
    let bytes = |mib: u32| mib as usize * BYTES_PER_MIB;
    ReducerOptions {
        bucket_cap_bytes: bytes(bucket_cap_mib),
        first_bucket_bytes: bytes(first_bucket_mib),
        hook: match compression {
            Compression::None => CommHook::None,
            Compression::Bf16 => CommHook::Bf16,
            Compression::Fp16 => CommHook::Fp16,
            Compression::PowerSgd => CommHook::PowerSgd(PowerSgd {
                rank: power_sgd.rank,
                // The first pass of a static graph is none of a step.
                plain_passes: power_sgd.start_step.saturating_sub(step) + u64::from(static_graph),
                seed: config.seed,
                ..PowerSgd::default()
            }),
        },
        static_graph,
        ..ReducerOptions::default()
    }
}

/// What a configuration asks for, among the ranks of a world that continues after `step` steps. `parameters` are equal on
/// all of them, and so is `layout`: see [`roundhouse_c10d::layout`].
///
/// # Errors
/// The ranks' parameters have different shapes or layouts, or a rank is gone.
pub fn build(
    config: &TrainerConfig,
    world: &World<C10dGroup>,
    parameters: &Parameters,
    layout: Option<&[Vec<usize>]>,
    group_size: u64,
    commit: Commit,
    step: u64,
) -> Result<Box<dyn Sync>, Failure> {
    let micro_batch_size = config.micro_batch_size;
    if let Some(num_slices) = config.slices {
        let exchange = world.shared().map(|group| {
            let exchange: Arc<dyn Exchange> = group;
            (world.rank(), world.size(), exchange)
        });
        return Ok(Box::new(Slices::new(
            num_slices,
            micro_batch_size,
            exchange,
            commit,
        )));
    }
    let Some(group) = world.group() else {
        return Ok(Box::new(Alone::new(micro_batch_size, group_size)));
    };
    let options = DdpOptions {
        reducer: ReducerOptions {
            buckets: layout.map(<[_]>::to_vec),
            ..reducer_options(config, step)
        },
        micro_batch_size,
        group_size,
        num_numbers: match commit {
            Commit::Host => RankVote::NUM_NUMBERS,
            // The host does not know them all.
            Commit::Device => 0,
        },
        commit,
    };
    let ddp = Ddp::new(group.process_group(), parameters, options);
    let ddp = ddp.map_err(|error| explain(world, error))?;
    Ok(Box::new(ddp))
}

/// What an error of a collective means. Garbage makes the Reducer's own checks fail, too ("DDP expects same model
/// across all ranks").
pub(crate) fn explain(world: &World<C10dGroup>, error: SyncError) -> Failure {
    let failure = match error {
        SyncError::Torch(error) => error.into(),
        SyncError::Group(error) => Failure::from(error),
    };
    if world.may_have_lost_a_peer() && !failure.is_own() {
        return Failure::peer_lost(failure.to_string());
    }
    failure
}

/// From parts of a batch to synchronized gradients.
pub trait Sync: std::fmt::Debug {
    /// The passes of this rank over a batch of these places: at least one, since a rank without samples takes
    /// part in the collectives, too.
    fn passes(&self, batch: &Range<u64>) -> Vec<Pass>;

    /// What the loss of a pass is multiplied by before its backward pass, so that the gradients are those of the
    /// mean over all samples of the batch.
    fn scale(&self, num_samples: u64) -> f64;

    /// What the sum over the ranks is divided by. A rank's own gradients are larger than its part of the mean by this
    /// factor; those of a scaled loss must not be, or whether they overflow would depend on the number of ranks.
    fn num_averaged(&self) -> u32 {
        1
    }

    /// Before each forward pass.
    ///
    /// # Errors
    /// A peer is gone.
    fn before_forward(&mut self) -> Result<(), SyncError>;

    /// Before each backward pass; returns what that pass begins with. `numbers` are what this rank has to tell the
    /// others at the end of the step. They count in the last pass alone, and their number is always the same.
    ///
    /// # Errors
    /// A peer is gone.
    fn before_backward(
        &mut self,
        pass: &Pass,
        scaled_loss: Tensor,
        numbers: &[f64],
    ) -> Result<Tensor, SyncError>;

    /// After each backward pass.
    ///
    /// # Errors
    /// A peer is gone.
    fn after_backward(
        &mut self,
        pass: &Pass,
        loss_sum: &Tensor,
        parameters: &mut Parameters,
    ) -> Result<(), SyncError>;

    /// The last step was not made: its gradients must not tell in later ones. All ranks skip the same steps.
    ///
    /// # Errors
    /// The device has failed.
    fn skipped(&mut self) -> Result<(), SyncError> {
        Ok(())
    }

    /// The losses of later steps are multiplied by a factor that is larger by `ratio`.
    ///
    /// # Errors
    /// The device has failed.
    fn rescaled(&mut self, ratio: f64) -> Result<(), SyncError> {
        let _ = ratio;
        Ok(())
    }

    /// After the last pass: the parameters hold the mean gradients of the batch, the same on all ranks.
    ///
    /// # Errors
    /// A peer is gone.
    fn finish(&mut self, parameters: &mut Parameters) -> Result<Finished, SyncError>;

    /// For how long this rank only waited for its peers in the backward pass of a step whose end the host has read.
    /// To be asked once for each step, in their order; the end of the first one is read before the second begins.
    ///
    /// # Errors
    /// The device has failed.
    fn waited(&mut self) -> Result<Duration, SyncError> {
        Ok(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use roundhouse_c10d::CommHook;
    use serde_json::{Value, json};

    use super::*;

    fn plain_passes(ddp: &Value, step: u64) -> u64 {
        let config = json!({
            "model": {"name": "mlp"}, "data": {"format": "idx"}, "globalBatchSize": 8, "steps": 9, "seed": 5, "ddp": ddp,
        });
        let config: TrainerConfig = serde_json::from_value(config).unwrap();
        match reducer_options(&config, step).hook {
            CommHook::PowerSgd(settings) => {
                assert_eq!((settings.rank, settings.seed), (3, 5));
                settings.plain_passes
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_start_step_counts_from_the_beginning_of_the_training_and_not_of_a_generation() {
        let ddp = json!({"compression": "PowerSGD", "powerSGD": {"rank": 3, "startStep": 100}});
        let passes = [0, 40, 100, 5_000].map(|step| plain_passes(&ddp, step));
        assert_eq!(passes, [100, 60, 0, 0]);
        let mut learns = ddp;
        learns["staticGraph"] = json!(true);
        assert_eq!(plain_passes(&learns, 5_000), 1);
    }
}
