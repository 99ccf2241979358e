//! Sums the gradients of replicas after the last pass, for processes that compute the same samples:
//! each has parts of layers, or some layers.

use std::ops::Range;
use std::sync::Arc;

use roundhouse_c10d::ReduceOp;
use roundhouse_elastic::shard::shard_of_groups;
use tch::{Kind, Tensor};

use super::alone::in_pieces;
use super::slices::with_loss;
use super::{Finished, Pass, Slices, Sync, SyncError};
use crate::group::C10dGroup;
use crate::parameters::Parameters;
use crate::pipeline::Pipeline;

/// A process whose gradients are summed over the processes with the same parts in other replicas,
/// after the last pass: a lost replica must not interrupt a pass of another one.
#[derive(Debug)]
pub(crate) struct DataParallel {
    replica: u32,
    num_replicas: u32,
    /// The processes with the same parts; `None`: there is one replica.
    column: Option<Arc<C10dGroup>>,
    micro_batch_size: Option<u32>,
    group_size: u64,
    /// With slices, the sum of their gradients.
    slices: Option<Slices>,
    /// The tensors that this process has, and their places.
    leaves: Parameters,
    /// The stage of this process.
    pipeline: Option<Arc<Pipeline>>,
    /// Number of the leaves that this process alone has. They come first.
    num_own: usize,
    /// The loss of this replica.
    loss: Option<Tensor>,
}

/// The passes of a replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passes {
    pub(crate) micro_batch_size: Option<u32>,
    pub(crate) group_size: u64,
}

impl DataParallel {
    pub(crate) fn new(
        (replica, num_replicas): (u32, u32),
        column: Option<Arc<C10dGroup>>,
        passes: Passes,
        slices: Option<Slices>,
        parameters: &Parameters,
    ) -> Self {
        let (leaves, num_own) = parameters.leaves();
        let pipeline = parameters.pipeline().cloned();
        Self {
            replica,
            num_replicas,
            column,
            micro_batch_size: passes.micro_batch_size,
            group_size: passes.group_size,
            slices,
            num_own,
            leaves,
            pipeline,
            loss: None,
        }
    }

    /// Sums the gradients that both ends of a pipeline have parts of. A collective of the replica.
    fn sum_ends(&mut self) -> Result<(), SyncError> {
        let Some(pipeline) = &self.pipeline else {
            return Ok(());
        };
        for leaf in &self.leaves.tensors()[self.num_own..] {
            let mut gradient = defined(leaf)?;
            let sum = pipeline.sum_of_ends(&gradient)?;
            gradient.f_copy_(&sum)?;
        }
        Ok(())
    }

    /// The losses of the samples, if this process has them.
    fn with_own_loss(&self, finished: Finished) -> Finished {
        let is_elsewhere = self.pipeline.is_some();
        Finished {
            loss_sum: finished.loss_sum.filter(|_| !is_elsewhere),
            ..finished
        }
    }
}

/// The gradient of a leaf; it becomes 0 if no pass has used the leaf.
fn defined(leaf: &Tensor) -> Result<Tensor, SyncError> {
    let gradient = leaf.f_grad()?;
    if gradient.defined() {
        return Ok(gradient);
    }
    let zeros = leaf.f_detach()?.f_zeros_like()?;
    roundhouse_c10d::set_grad(&mut [leaf.shallow_clone()], std::slice::from_ref(&zeros))?;
    Ok(leaf.f_grad()?)
}

/// The sums of tensors over a group, by one collective.
fn in_rows(group: &C10dGroup, tensors: &[&Tensor]) -> Result<Vec<Tensor>, SyncError> {
    if tensors.is_empty() {
        return Ok(Vec::new());
    }
    let flat = tensors.iter().map(|it| it.f_reshape([-1]));
    let flat: Vec<Tensor> = flat.collect::<Result<_, _>>()?;
    let mut row = Tensor::f_cat(&flat, 0)?;
    group.process_group().all_reduce(&mut row, ReduceOp::Sum)?;
    let (mut sums, mut at) = (Vec::new(), 0);
    for tensor in tensors {
        let length: i64 = tensor.size().iter().product();
        sums.push(row.f_narrow(0, at, length)?.f_view_as(tensor)?);
        at += length;
    }
    Ok(sums)
}

impl Sync for DataParallel {
    fn passes(&self, batch: &Range<u64>) -> Vec<Pass> {
        if let Some(slices) = &self.slices {
            return slices.passes(batch);
        }
        let part = shard_of_groups(batch, self.replica, self.num_replicas, self.group_size);
        in_pieces(batch, &part, self.micro_batch_size, self.group_size)
    }

    fn passes_ahead(&self) -> usize {
        let stage = self.pipeline.as_ref().map(|it| it.stage());
        stage.map_or(0, |stage| stage.number - 1 - stage.index)
    }

    fn after_backward(
        &mut self,
        pass: &Pass,
        loss_sum: &Tensor,
        _: &mut Parameters,
    ) -> Result<(), SyncError> {
        if pass.ends_slice && self.slices.is_some() {
            self.sum_ends()?;
        }
        if let Some(slices) = &mut self.slices {
            return slices.after_backward(pass, loss_sum, &mut self.leaves);
        }
        self.loss = Some(with_loss(self.loss.take(), loss_sum)?);
        Ok(())
    }

    fn finish(&mut self, _: &mut Parameters) -> Result<Finished, SyncError> {
        if let Some(pipeline) = &self.pipeline {
            // Not earlier: the next process may need something of this one before it receives.
            pipeline.flush().map_err(SyncError::Replica)?;
        }
        if let Some(slices) = &mut self.slices {
            let finished = slices.finish(&mut self.leaves)?;
            return Ok(self.with_own_loss(finished));
        }
        // Before the sums over the replicas, which may fail in one process and not in its sibling.
        self.sum_ends()?;
        let mut gradients = Vec::new();
        for tensor in self.leaves.tensors() {
            gradients.push(defined(tensor)?);
        }
        let mut loss = self.loss.take();
        if let Some(column) = &self.column {
            // What several processes have is a row of its own: the order of a sum over three or
            // more ranks depends on the row, and these processes must get the same bits.
            let (own, shared) = gradients.split_at(self.num_own);
            let own = own.iter().chain(&loss);
            let mut own = in_rows(column, &own.collect::<Vec<_>>())?;
            loss = loss.and_then(|_| own.pop());
            let shared = in_rows(column, &shared.iter().collect::<Vec<_>>())?;
            gradients = own.into_iter().chain(shared).collect();
            roundhouse_c10d::set_grad(self.leaves.tensors_mut(), &gradients)?;
        }
        let loss_sum = loss.map(|it| it.f_to_kind(Kind::Double)).transpose()?;
        Ok(self.with_own_loss(Finished {
            loss_sum,
            ..Finished::default()
        }))
    }
}
