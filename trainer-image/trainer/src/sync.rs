//! How the ranks of a process group turn their parts of a batch into gradients that are the same on
//! all ranks.
//!
//! A [`Sync`] decides the passes of this rank, and the training loop calls it around each pass:
//! ```text
//! for pass in sync.passes(batch):
//!     sync.before_forward()
//!     loss = task.loss(source.fetch(pass.places)) · sync.scale(batch)
//!     backward(sync.before_backward(pass, loss, numbers))
//!     sync.after_backward(pass)
//! sync.finish()
//! ```

use std::ops::Range;
use std::rc::Rc;
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
use crate::replica;

mod alone;
mod bucket_integers;
mod data_parallel;
mod ddp;
mod hybrid;
mod slices;

pub use alone::Alone;
pub(crate) use data_parallel::DataParallel;
pub use ddp::{Ddp, DdpOptions};
pub(crate) use hybrid::Hybrid;
pub use slices::{Exchange, Slices};

/// One forward and backward pass over a part of a rank's samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Places in the epoch's order. The range may be empty.
    pub places: Range<u64>,
    /// Index of the fixed part of the global batch, for random numbers: see [`crate::Mode::Train`].
    pub slice: u64,
    /// Whether this is the last pass of its slice. A slice that is too large for memory has several
    /// passes.
    pub ends_slice: bool,
    /// Whether this is this rank's last pass of the step.
    pub is_last: bool,
    /// Whether nothing of the pass counts. It is computed only because the other processes of the
    /// replica compute a pass at the same time, with weights that all of them hold together.
    pub is_idle: bool,
}

/// The results of the synchronization, besides the gradients.
#[derive(Debug, Default)]
pub struct Finished {
    /// The numbers of all ranks, in the order of the ranks, if they were sent with the gradients.
    pub numbers: Option<Vec<Vec<f64>>>,
    /// The sum of the losses of the global batch in 64 bits, as one element on the device, if it
    /// was sent with the gradients.
    pub loss_sum: Option<Tensor>,
    /// If the device commits steps and there are peers: the [`roundhouse_c10d::digest`] of the
    /// summed gradients, which must be the same on all ranks.
    pub digest: Option<Tensor>,
}

/// Whether the host or the device decides that a step is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// The host reads the result of the vote before it launches the update.
    Host,
    /// The update depends on a flag on the device. The host reads the same flag one step later.
    Device,
}

/// Why gradients could not be synchronized.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// A collective of c10d failed.
    #[error(transparent)]
    Group(#[from] roundhouse_c10d::Error),
    /// A collective of the replica failed.
    #[error("{0}")]
    Replica(roundhouse_c10d::Error),
    /// libtorch refuses an operation.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
}

const BYTES_PER_MIB: usize = 1 << 20;

/// How a configuration packs and sends gradients, for a generation that starts after `step` steps.
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
                // The first pass of a static graph does not belong to a step.
                plain_passes: power_sgd.start_step.saturating_sub(step) + u64::from(static_graph),
                seed: config.seed,
                ..PowerSgd::default()
            }),
        },
        static_graph,
        ..ReducerOptions::default()
    }
}

/// Builds the synchronization that a configuration selects, for the ranks of a process group that
/// continues after `step` steps. `parameters` and `layout` must be equal on all ranks: see
/// [`roundhouse_c10d::layout`].
///
/// # Errors
/// The ranks' parameters have different shapes or layouts, or a rank is lost.
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
    if let Some(shards) = parameters.shards() {
        let place = (world.rank(), world.size());
        let column = world.group().and_then(C10dGroup::column);
        let shards = Rc::clone(shards);
        let hybrid = Hybrid::new(
            config,
            shards,
            place,
            column,
            group_size,
            parameters.leaves(),
        );
        return Ok(Box::new(hybrid));
    }
    if parameters.sharing().is_some() {
        let place = parameters.share_of(world.rank(), world.size());
        let column = world.group().and_then(C10dGroup::column);
        let exchange = column
            .clone()
            .map(|column| -> (u32, u32, Arc<dyn Exchange>) { (place.0, place.1, column) });
        let slices = config
            .slices
            .map(|number| Slices::new(number, micro_batch_size, exchange, commit));
        let passes = data_parallel::Passes {
            micro_batch_size,
            group_size,
        };
        let columns = DataParallel::new(place, column, passes, slices, parameters);
        return Ok(Box::new(columns));
    }
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
            // The host does not know all of the numbers, so they cannot travel with the gradients.
            Commit::Device => 0,
        },
        commit,
    };
    let ddp = Ddp::new(group.process_group(), parameters, options);
    let ddp = ddp.map_err(|error| explain(world, error))?;
    Ok(Box::new(ddp))
}

/// Maps an error of a collective to a failure. If a peer is lost, the Reducer may receive garbage
/// and fail its own checks ("DDP expects same model across all ranks"); this counts as a lost peer,
/// too.
pub(crate) fn explain(world: &World<C10dGroup>, error: SyncError) -> Failure {
    let failure = match error {
        SyncError::Torch(error) => error.into(),
        SyncError::Group(error) => Failure::from(error),
        SyncError::Replica(error) => return replica::lost(&error),
    };
    if world.may_have_lost_a_peer() && !failure.is_own() {
        return Failure::peer_lost(failure.to_string());
    }
    failure
}

/// Turns the ranks' parts of a batch into synchronized gradients.
pub trait Sync: std::fmt::Debug {
    /// The passes of this rank over a batch of these places. There is at least one, because a rank
    /// without samples also takes part in the collectives.
    fn passes(&self, batch: &Range<u64>) -> Vec<Pass>;

    /// Number of forward passes that this rank computes before the backward pass of the first one.
    /// Backward passes come in the order of the passes.
    fn passes_ahead(&self) -> usize {
        0
    }

    /// The factor of a pass' loss before its backward pass. It makes the gradients those of the
    /// mean over all samples of the batch.
    fn scale(&self, num_samples: u64) -> f64 {
        1.0 / num_samples.max(1) as f64
    }

    /// The divisor of the sum over the ranks. A rank's own gradients are larger than its part of
    /// the mean by this factor. Loss scaling must compensate for it, or the number of ranks would
    /// decide whether gradients overflow.
    fn num_averaged(&self) -> u32 {
        1
    }

    /// Must be called before each forward pass.
    ///
    /// # Errors
    /// A peer is lost.
    fn before_forward(&mut self) -> Result<(), SyncError> {
        Ok(())
    }

    /// Whether [`Self::before_backward`] sends the numbers of this rank with the gradients.
    fn carries_numbers(&self) -> bool {
        false
    }

    /// Must be called before each backward pass; returns the root of that pass. `numbers` is this
    /// rank's vote at the end of the step. Only the numbers of the last pass count, and their count
    /// is always the same.
    ///
    /// # Errors
    /// A peer is lost.
    fn before_backward(
        &mut self,
        pass: &Pass,
        scaled_loss: Tensor,
        numbers: &[f64],
    ) -> Result<Tensor, SyncError> {
        let _ = (pass, numbers);
        Ok(scaled_loss)
    }

    /// Must be called after each backward pass.
    ///
    /// # Errors
    /// A peer is lost.
    fn after_backward(
        &mut self,
        pass: &Pass,
        loss_sum: &Tensor,
        parameters: &mut Parameters,
    ) -> Result<(), SyncError> {
        let _ = (pass, loss_sum, parameters);
        Ok(())
    }

    /// Must be called on all ranks after a step without an update: the gradients of that step must
    /// not influence later steps.
    ///
    /// # Errors
    /// The device reports a failure.
    fn skipped(&mut self) -> Result<(), SyncError> {
        Ok(())
    }

    /// Must be called when the loss factor of later steps is `ratio` times the factor before.
    ///
    /// # Errors
    /// The device reports a failure.
    fn rescaled(&mut self, ratio: f64) -> Result<(), SyncError> {
        let _ = ratio;
        Ok(())
    }

    /// Must be called after the last pass. Afterwards the parameters hold the mean gradients of the
    /// batch, which are the same on all ranks.
    ///
    /// # Errors
    /// A peer is lost.
    fn finish(&mut self, parameters: &mut Parameters) -> Result<Finished, SyncError>;

    /// How long this rank only waited for its peers in the backward pass of a step whose end the
    /// host has read. Call it once per step, in the order of the steps; the caller must read the
    /// end of the first step before the second step begins.
    ///
    /// # Errors
    /// The device reports a failure.
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
    fn start_step_counts_from_the_start_of_the_training() {
        let ddp = json!({"compression": "PowerSGD", "powerSGD": {"rank": 3, "startStep": 100}});
        let passes = [0, 40, 100, 5_000].map(|step| plain_passes(&ddp, step));
        assert_eq!(passes, [100, 60, 0, 0]);
        let mut learns = ddp;
        learns["staticGraph"] = json!(true);
        assert_eq!(plain_passes(&learns, 5_000), 1);
    }
}
