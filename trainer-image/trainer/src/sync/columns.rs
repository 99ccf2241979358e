//! Processes of a replica that compute the same samples, each with its parts of the weights.

use std::ops::Range;
use std::sync::Arc;

use roundhouse_c10d::ReduceOp;
use roundhouse_elastic::shard::shard_of_groups;
use tch::{Kind, Tensor};

use super::alone::in_pieces;
use super::slices::with_loss;
use super::{Finished, Pass, Sync, SyncError};
use crate::group::C10dGroup;
use crate::parameters::Parameters;

/// A process whose gradients are summed over the processes with the same parts in other replicas,
/// after the last pass: a lost replica must not interrupt a pass of another one.
#[derive(Debug)]
pub(crate) struct Columns {
    replica: u32,
    num_replicas: u32,
    /// The processes with the same parts; `None`: there is one replica.
    column: Option<Arc<C10dGroup>>,
    micro_batch_size: Option<u32>,
    group_size: u64,
    /// The loss of this replica.
    loss: Option<Tensor>,
}

impl Columns {
    pub(crate) const fn new(
        (replica, num_replicas): (u32, u32),
        column: Option<Arc<C10dGroup>>,
        micro_batch_size: Option<u32>,
        group_size: u64,
    ) -> Self {
        Self {
            replica,
            num_replicas,
            column,
            micro_batch_size,
            group_size,
            loss: None,
        }
    }
}

impl Sync for Columns {
    fn passes(&self, batch: &Range<u64>) -> Vec<Pass> {
        let part = shard_of_groups(batch, self.replica, self.num_replicas, self.group_size);
        in_pieces(batch, &part, self.micro_batch_size, self.group_size)
    }

    fn scale(&self, num_samples: u64) -> f64 {
        1.0 / num_samples.max(1) as f64
    }

    fn before_forward(&mut self) -> Result<(), SyncError> {
        Ok(())
    }

    fn before_backward(&mut self, _: &Pass, loss: Tensor, _: &[f64]) -> Result<Tensor, SyncError> {
        Ok(loss)
    }

    fn after_backward(
        &mut self,
        _: &Pass,
        loss_sum: &Tensor,
        _: &mut Parameters,
    ) -> Result<(), SyncError> {
        self.loss = Some(with_loss(self.loss.take(), loss_sum)?);
        Ok(())
    }

    fn finish(&mut self, parameters: &mut Parameters) -> Result<Finished, SyncError> {
        let mut row = Vec::new();
        for tensor in parameters.tensors() {
            row.push(tensor.f_grad()?.f_reshape([-1])?);
        }
        row.extend(self.loss.take());
        let mut row = Tensor::f_cat(&row, 0)?;
        if let Some(column) = &self.column {
            let group = column.process_group();
            group.all_reduce(&mut row, ReduceOp::Sum)?;
        }
        let (mut gradients, mut at) = (Vec::new(), 0);
        for tensor in parameters.tensors() {
            let length: i64 = tensor.size().iter().product();
            gradients.push(row.f_narrow(0, at, length)?.f_view_as(tensor)?);
            at += length;
        }
        roundhouse_c10d::set_grad(parameters.tensors_mut(), &gradients)?;
        Ok(Finished {
            loss_sum: Some(row.f_narrow(0, at, 1)?.f_to_kind(Kind::Double)?),
            ..Finished::default()
        })
    }
}
