//! Gradients that are divided within each replica and summed over the replicas (hybrid sharding;
//! Zhao et al., VLDB 2023).
//!
//! The processes of a replica compute passes at the same time, because each pass gathers weights
//! that they hold together. Within a pass each process gets the gradients of its part of the
//! weights from all of them. After the last pass the processes with the same part sum it over the
//! replicas. Only this sum can fail because of another replica, so a lost replica never interrupts
//! a pass.
//!
//! With slices the gradients of each slice stay apart until they are summed along the fixed tree of
//! [`Slices`], so weights are equal bit for bit for every number of replicas and processes.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use roundhouse_c10d::ReduceOp;
use roundhouse_contract::TrainerConfig;
use tch::{Kind, TchError, Tensor};

use super::slices::with_loss;
use super::{Commit, Exchange, Finished, Pass, Slices, Sync, SyncError};
use crate::group::C10dGroup;
use crate::parameters::Parameters;
use crate::shards::Shards;

mod passes;

use passes::Place;

/// A process of a replica, whose shards have the gradients.
#[derive(Debug)]
pub(crate) struct Hybrid {
    shards: Rc<Shards>,
    /// The parts of this process, and the tensors that are not divided.
    leaves: Parameters,
    /// Number of the leaves that are parts.
    num_shards: usize,
    place: Place,
    /// The processes with the same part in all replicas; `None`: there is one replica.
    column: Option<Arc<C10dGroup>>,
    slices: Option<Slices>,
    /// Number of rounds of slices of this step that have ended.
    num_rounds: u32,
    /// The loss of this process in the current round.
    loss: Option<Tensor>,
    micro_batch_size: Option<u32>,
    group_size: u64,
}

impl Hybrid {
    /// A process with this rank among all ranks. `leaves` are [`Parameters::leaves`].
    pub(crate) fn new(
        config: &TrainerConfig,
        shards: Rc<Shards>,
        (rank, world_size): (u32, u32),
        column: Option<Arc<C10dGroup>>,
        group_size: u64,
        (leaves, num_shards): (Parameters, usize),
    ) -> Self {
        let size = shards.sharing().num_shards;
        let slices = config.slices.map(|num_slices| {
            let exchange = column.clone().map(|column| -> Arc<dyn Exchange> { column });
            let world = exchange.map(|exchange| (rank / size, world_size / size, exchange));
            // Passes are cut here.
            Slices::new(num_slices, None, world, Commit::Host)
        });
        Self {
            num_shards,
            shards,
            leaves,
            place: Place {
                rank,
                world_size,
                num_shards: size,
            },
            column,
            slices,
            num_rounds: 0,
            loss: None,
            micro_batch_size: config.micro_batch_size,
            group_size,
        }
    }

    /// Number of processes of a replica.
    fn size(&self) -> u32 {
        self.place.num_shards
    }

    /// The gradients of the tensors that are not divided, and the loss, of each process of the
    /// replica: one row for each.
    fn of_undivided(&mut self) -> Result<Tensor, SyncError> {
        let loss = match self.loss.take() {
            Some(loss) => loss,
            None => Tensor::f_zeros([1], (Kind::Float, self.leaves.device()))?,
        };
        let mut own = Vec::new();
        for tensor in self.undivided() {
            let gradient = tensor.f_grad()?;
            let gradient = if gradient.defined() {
                gradient
            } else {
                tensor.f_detach()?.f_zeros_like()?
            };
            own.push(gradient.f_reshape([-1])?);
        }
        own.push(loss);
        let own = Tensor::f_cat(&own, 0)?;
        let size = i64::from(self.size());
        Ok(self.shards.all_gather(&own)?.f_view([size, -1])?)
    }

    fn undivided(&self) -> &[Tensor] {
        &self.leaves.tensors()[self.num_shards..]
    }

    /// Takes the sums of the gradients of all passes of the replica.
    fn take_sums(&mut self) -> Result<(), SyncError> {
        let mut gradients = Vec::new();
        for unit in 0..self.num_shards {
            gradients.push(self.shards.gradients(unit)?.f_view([-1])?);
        }
        let rows = self.of_undivided()?;
        let mut sum = rows.f_select(0, 0)?;
        for process in 1..i64::from(self.size()) {
            sum = sum.f_add(&rows.f_select(0, process)?)?;
        }
        let mut at = 0;
        for tensor in self.undivided() {
            let length: i64 = tensor.size().iter().product();
            gradients.push(sum.f_narrow(0, at, length)?.f_view_as(tensor)?);
            at += length;
        }
        Ok(roundhouse_c10d::set_grad(
            self.leaves.tensors_mut(),
            &gradients,
        )?)
    }

    /// Adds the slices that the processes of the replica have computed in this round.
    fn end_round(&mut self, mut slices: Slices) -> Result<Slices, SyncError> {
        let round = passes::slices_of_round(self.place, &slices.own(), self.num_rounds);
        let mut rows = Vec::new();
        for unit in 0..self.num_shards {
            rows.push(self.shards.gradients(unit)?);
        }
        rows.push(self.of_undivided()?);
        for (process, slice) in (0..).zip(round) {
            let Some(slice) = slice else { continue };
            let row = rows.iter().map(|rows| rows.f_select(0, process));
            let row = Tensor::f_cat(&row.collect::<Result<Vec<_>, _>>()?, 0)?;
            // Turn -0 into +0, as without shards.
            slices.add(slice, { row }.f_add_scalar_(0.0)?)?;
        }
        self.num_rounds += 1;
        roundhouse_c10d::zero_grad(&mut self.leaves.tensors_mut()[self.num_shards..])?;
        Ok(slices)
    }
}

impl Sync for Hybrid {
    fn passes(&self, batch: &Range<u64>) -> Vec<Pass> {
        let (most, group_size) = (self.micro_batch_size, self.group_size);
        match &self.slices {
            None => passes::of_samples(self.place, batch, most, group_size),
            Some(slices) => {
                let slices = (slices.own(), slices.num_slices());
                passes::of_slices(self.place, batch, most, group_size, slices)
            }
        }
    }

    fn before_forward(&mut self) -> Result<(), SyncError> {
        let begun = self.shards.sharding().begin_pass();
        begun.map_err(SyncError::Replica)
    }

    fn after_backward(
        &mut self,
        pass: &Pass,
        loss_sum: &Tensor,
        _: &mut Parameters,
    ) -> Result<(), SyncError> {
        let ended = self.shards.sharding().end_pass();
        ended.map_err(SyncError::Replica)?;
        if !pass.is_idle {
            self.loss = Some(with_loss(self.loss.take(), loss_sum)?);
        }
        if let Some(slices) = self.slices.take_if(|_| pass.ends_slice) {
            self.slices = Some(self.end_round(slices)?);
        } else if self.slices.is_none() && pass.is_last {
            self.take_sums()?;
        }
        Ok(())
    }

    fn finish(&mut self, _: &mut Parameters) -> Result<Finished, SyncError> {
        self.num_rounds = 0;
        if let Some(slices) = &mut self.slices {
            // Slices::finish() writes the sums into gradients that exist.
            let zeros = self.leaves.tensors().iter();
            let zeros = zeros.map(|it| it.f_detach()?.f_zeros_like());
            let zeros: Vec<Tensor> = zeros.collect::<Result<_, TchError>>()?;
            roundhouse_c10d::set_grad(self.leaves.tensors_mut(), &zeros)?;
            return slices.finish(&mut self.leaves);
        }
        if let Some(column) = &self.column {
            for tensor in self.leaves.tensors() {
                let group = column.process_group();
                group.all_reduce(&mut tensor.f_grad()?, ReduceOp::Sum)?;
            }
        }
        Ok(Finished::default())
    }
}
