//! Data parallelism over libtorch's Reducer: each rank computes its part of the batch, and the
//! Reducer averages gradients in buckets while the backward pass still runs (Li et al., VLDB 2020).
//!
//! The loss of a part is `sum · W / G`, so the average over W ranks is the mean over all G samples
//! of the batch, also if the parts differ in size. Over Gloo, if the host commits steps and
//! gradients are not rounded to 16 bits, the ranks' votes at the end of a step travel in a bucket,
//! too: they are the gradient of an additional parameter, the carrier. So a step has no other
//! collectives than those of its gradients. The carrier is a vector, which `PowerSGD` sends
//! uncompressed.

use std::ops::Range;
use std::time::Duration;

use roundhouse_c10d::{CommHook, ProcessGroup, Reducer, ReducerOptions};
use roundhouse_elastic::shard::shard_of_groups;
use tch::{Device, Kind, Tensor};

use super::alone::in_pieces;
use super::bucket_integers;
use super::{Commit, Finished, Pass, Sync, SyncError};
use crate::parameters::{Parameters, Role};

/// With more ranks the votes are exchanged in a separate collective, because the slots would cost
/// more.
const MOST_RANKS_IN_A_BUCKET: u32 = 64;

/// How a batch is split, and how gradients are packed.
#[derive(Clone, Debug)]
pub struct DdpOptions {
    /// How the Reducer packs gradients.
    pub reducer: ReducerOptions,
    /// Largest number of samples of one pass; `None`: no bound.
    pub micro_batch_size: Option<u32>,
    /// Parts are cut at multiples of this number of places of the batch.
    pub group_size: u64,
    /// Number of values of each rank's vote that travel with the gradients; 0: none.
    pub num_numbers: usize,
    /// Whether the host or the device commits steps.
    pub commit: Commit,
}

/// Replicas of a model on the ranks of a group.
#[derive(Debug)]
pub struct Ddp {
    reducer: Reducer,
    rank: u32,
    world_size: u32,
    options: DdpOptions,
    /// The parameter whose gradient carries the votes, if they travel with the gradients.
    carrier: Option<Tensor>,
    has_reported_wait: bool,
}

impl Ddp {
    /// Creates replicas that synchronize the gradients of `parameters`, which must be equal on all
    /// ranks. A collective.
    ///
    /// # Errors
    /// The ranks' parameters have different shapes, or a rank is lost.
    pub fn new(
        group: &ProcessGroup,
        parameters: &Parameters,
        options: DdpOptions,
    ) -> Result<Self, SyncError> {
        let world_size = group.world_size();
        // If the library does not report failures, the vote must follow the gradients, because the
        // vote detects gradients of an aborted group. Nor can the numbers be rounded to 16 bits.
        let is_exact = match options.reducer.hook {
            CommHook::None | CommHook::PowerSgd(_) => true,
            CommHook::Bf16 | CommHook::Fp16 => false,
        };
        let travels =
            group.backend().reports_failures() && world_size <= MOST_RANKS_IN_A_BUCKET && is_exact;
        let num_slots =
            options.num_numbers * bucket_integers::SLOTS_PER_NUMBER * world_size as usize;
        let carrier = (travels && num_slots > 0)
            .then(|| {
                let length = i64::try_from(num_slots).unwrap_or(i64::MAX);
                Tensor::f_zeros([length], (Kind::Float, Device::Cpu))?.f_set_requires_grad(true)
            })
            .transpose()?;
        let all: Vec<Tensor> = parameters
            .tensors()
            .iter()
            .chain(&carrier)
            .map(Tensor::shallow_clone)
            .collect();
        let mut packing = options.reducer.clone();
        packing.whole = statistics(parameters);
        if carrier.is_some() {
            packing.buckets = packing.buckets.map(|layout| carried(layout, parameters));
        }
        let mut reducer = Reducer::new(&all, group, &packing)?;
        if packing.static_graph {
            let mut all = all;
            learn_graph(&mut reducer, parameters, carrier.as_ref())?;
            roundhouse_c10d::zero_grad(&mut all)?;
        }
        Ok(Self {
            reducer,
            rank: group.rank(),
            world_size,
            options,
            carrier,
            has_reported_wait: false,
        })
    }
}

/// The parameters whose gradient is a running statistic. They are sent uncompressed, because no
/// later step would correct their error.
fn statistics(parameters: &Parameters) -> Vec<usize> {
    let roles = parameters.roles().iter().enumerate();
    roles
        .filter_map(|(index, role)| match role {
            Role::Statistic { .. } => Some(index),
            Role::Weight => None,
        })
        .collect()
}

/// Runs the first pass of a static graph, in which each parameter gets a gradient of 0 once. The
/// Reducer sums the first pass in another way than later passes, so it must not belong to a step. A
/// collective.
fn learn_graph(
    reducer: &mut Reducer,
    parameters: &Parameters,
    carrier: Option<&Tensor>,
) -> Result<(), SyncError> {
    let mut nothing = parameters.no_loss()?;
    if let Some(carrier) = carrier {
        nothing = nothing.f_add(&carrier.f_sum(Kind::Float)?)?;
    }
    reducer.prepare_for_forward()?;
    let roots = [nothing];
    reducer.prepare_for_backward_from(&roots)?;
    Ok(roundhouse_c10d::backward(&roots[0])?)
}

/// Adds the carrier to a layout; its index follows those of the parameters. The backward pass
/// computes the carrier's gradient first, so it goes into the first bucket if that bucket has its
/// type. It does not count in the bucket's size, so the parameters' layout is the same for every
/// number of ranks.
fn carried(mut layout: Vec<Vec<usize>>, parameters: &Parameters) -> Vec<Vec<usize>> {
    let carrier = parameters.tensors().len();
    let is_like = |index: &usize| parameters.at(*index).kind() == Kind::Float;
    match layout.first_mut() {
        Some(first) if first.iter().all(is_like) => first.insert(0, carrier),
        _ => layout.insert(0, vec![carrier]),
    }
    layout
}

impl Sync for Ddp {
    fn passes(&self, batch: &Range<u64>) -> Vec<Pass> {
        let group_size = self.options.group_size;
        let part = shard_of_groups(batch, self.rank, self.world_size, group_size);
        in_pieces(batch, &part, self.options.micro_batch_size, group_size)
    }

    fn scale(&self, num_samples: u64) -> f64 {
        f64::from(self.world_size) / num_samples.max(1) as f64
    }

    fn num_averaged(&self) -> u32 {
        self.world_size
    }

    fn before_forward(&mut self) -> Result<(), SyncError> {
        Ok(self.reducer.prepare_for_forward()?)
    }

    fn carries_numbers(&self) -> bool {
        self.carrier.is_some()
    }

    fn before_backward(
        &mut self,
        pass: &Pass,
        scaled_loss: Tensor,
        numbers: &[f64],
    ) -> Result<Tensor, SyncError> {
        if !pass.is_last {
            // Only the last pass synchronizes. Gradients of earlier passes accumulate on this rank.
            return Ok(scaled_loss);
        }
        let mut root = scaled_loss;
        if let Some(carrier) = &self.carrier {
            let slots = bucket_integers::write(numbers, self.rank, self.world_size);
            // The carrier is 0, so it adds 0 to the loss. Its gradient is the slots.
            let words = carrier.f_dot(&Tensor::f_from_slice(&slots)?)?;
            root = root.f_add(&words)?;
        }
        let roots = [root];
        self.reducer.prepare_for_backward_from(&roots)?;
        let [root] = roots;
        Ok(root)
    }

    fn skipped(&mut self) -> Result<(), SyncError> {
        Ok(self.reducer.forget()?)
    }

    fn rescaled(&mut self, ratio: f64) -> Result<(), SyncError> {
        Ok(self.reducer.rescale(ratio)?)
    }

    fn finish(&mut self, _: &mut Parameters) -> Result<Finished, SyncError> {
        let numbers = match &mut self.carrier {
            None => None,
            Some(carrier) => {
                let means = Vec::<f32>::try_from(&carrier.f_grad()?)?;
                let numbers = bucket_integers::read(&means, self.world_size).ok_or_else(|| {
                    roundhouse_c10d::Error {
                        kind: roundhouse_c10d::ErrorKind::ConnectionLost,
                        message: "the sum lacks the part of a rank".to_owned(),
                    }
                })?;
                roundhouse_c10d::zero_grad(std::slice::from_mut(carrier))?;
                Some(numbers)
            }
        };
        self.reducer.end_pass()?;
        Ok(Finished {
            numbers,
            loss_sum: None,
            digest: match self.options.commit {
                // The library reports failures, and the votes have arrived with the gradients.
                Commit::Host => None,
                Commit::Device => Some(self.reducer.digest()?),
            },
        })
    }

    fn waited(&mut self) -> Result<Duration, SyncError> {
        let mut waited = self.reducer.waited_before()?;
        if !self.has_reported_wait {
            // Discard the waits of passes before the first step.
            self.has_reported_wait = true;
            while let Some(later) = self.reducer.waited_before()? {
                waited = Some(later);
            }
        }
        Ok(waited.unwrap_or_default())
    }
}
