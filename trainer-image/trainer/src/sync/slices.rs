//! Gradients that are equal bit for bit whatever the number of ranks is.
//!
//! Each global batch is cut into V fixed slices. A rank computes its slices one after the other, each in a pass of its
//! own, so kernels see the same shapes for every number of ranks; gradients and losses are summed along one binary
//! tree over the slices ([`roundhouse_elastic::slices`]). A rank adds up the nodes that it owns whole. Then each rank
//! gets one chunk of the nodes of all ranks, adds up the rest of the tree for it, and the chunks are gathered.
//!
//! With n gradients of 4 bytes and k nodes left on a rank (1 when each rank owns 2^i slices, never more than
//! 2·log2(V/W) + 2), a rank sends `(k + 1) · 4n · (W - 1) / W` bytes; a ring of all-reduce sends
//! `2 · 4n · (W - 1) / W`. Nothing overlaps the backward pass.

use std::ops::Range;
use std::sync::Arc;

use roundhouse_elastic::micro::micro_batches;
use roundhouse_elastic::slices::{Node, Partial, nodes, owned, places, total};
use tch::{Device, TchError, Tensor};

use super::{Commit, Finished, Pass, Sync, SyncError};
use crate::parameters::Parameters;

/// What [`Slices`] needs of a process group.
pub trait Exchange: std::fmt::Debug {
    /// Sends to each rank its part of `input` and returns what all ranks have sent to this one, in their order.
    /// `to` and `from` are the lengths of these parts.
    ///
    /// # Errors
    /// A peer is gone.
    fn all_to_all(&self, input: &Tensor, to: &[i64], from: &[i64]) -> Result<Tensor, SyncError>;

    /// Returns the chunks of all ranks, which are of one length, one after the other.
    ///
    /// # Errors
    /// A peer is gone.
    fn all_gather(&self, chunk: &Tensor) -> Result<Tensor, SyncError>;
}

/// The ranks of a world that sum along a fixed tree.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "counts are named num_")]
pub struct Slices {
    exchange: Option<Arc<dyn Exchange>>,
    num_slices: u32,
    rank: u32,
    world_size: u32,
    micro_batch_size: Option<u32>,
    commit: Commit,
    /// The sums of this step, each of all gradients and the loss; the loss of the slice at hand.
    partial: Partial<Tensor>,
    loss: Option<Tensor>,
}

impl Slices {
    /// A rank of a world. Without an exchange it is a world of one.
    #[must_use]
    pub fn new(
        num_slices: u32,
        micro_batch_size: Option<u32>,
        world: Option<(u32, u32, Arc<dyn Exchange>)>,
        commit: Commit,
    ) -> Self {
        let (rank, world_size, exchange) = match world {
            None => (0, 1, None),
            Some((rank, world_size, exchange)) => (rank, world_size, Some(exchange)),
        };
        Self {
            exchange,
            num_slices,
            rank,
            world_size,
            micro_batch_size,
            commit,
            partial: Partial::new(num_slices, owned(num_slices, rank, world_size)),
            loss: None,
        }
    }

    fn owned_by(&self, rank: u32) -> Range<u32> {
        owned(self.num_slices, rank, self.world_size)
    }

    /// The whole sum, from the nodes that this rank has.
    fn total(
        &self,
        own: Vec<(Node, Tensor)>,
        length: i64,
        device: Device,
    ) -> Result<Tensor, SyncError> {
        let Some(exchange) = &self.exchange else {
            return sum_of(self.num_slices, own);
        };
        let size = i64::from(self.world_size);
        let chunk = (length + size - 1) / size;
        let padded = |(_, sum): &(Node, Tensor)| {
            let padding = chunk * size - length;
            sum.f_constant_pad_nd([0, padding])?
                .f_view([size, 1, chunk])
        };
        let parts: Vec<Tensor> = own.iter().map(padded).collect::<Result<_, TchError>>()?;
        // [ranks, nodes, chunk]: what goes to one rank is in one piece.
        let input = if parts.is_empty() {
            Tensor::f_empty([0], (tch::Kind::Float, device))?
        } else {
            Tensor::f_cat(&parts, 1)?.f_reshape([-1])?
        };
        let theirs: Vec<Vec<Node>> = (0..self.world_size)
            .map(|rank| nodes(&self.owned_by(rank), self.num_slices))
            .collect();
        let lengths = |nodes: &Vec<Node>| i64::try_from(nodes.len()).unwrap_or(0) * chunk;
        let from: Vec<i64> = theirs.iter().map(lengths).collect();
        let to = vec![i64::try_from(own.len()).unwrap_or(0) * chunk; self.world_size as usize];
        let output = exchange.all_to_all(&input, &to, &from)?;
        let mut at = 0;
        let mut all = Vec::new();
        for node in theirs.into_iter().flatten() {
            all.push((node, output.f_narrow(0, at, chunk)?));
            at += chunk;
        }
        let sum = sum_of(self.num_slices, all)?;
        Ok(exchange.all_gather(&sum)?.f_narrow(0, 0, length)?)
    }
}

impl Sync for Slices {
    fn passes(&self, batch: &Range<u64>) -> Vec<Pass> {
        let mut passes = Vec::new();
        for slice in self.owned_by(self.rank) {
            let pieces = micro_batches(
                &places(batch, slice, self.num_slices),
                self.micro_batch_size,
            );
            let last = pieces.len() - 1;
            passes.extend(pieces.into_iter().enumerate().map(|(index, places)| Pass {
                places,
                slice: u64::from(slice),
                ends_slice: index == last,
                is_last: false,
            }));
        }
        if passes.is_empty() {
            // A pass over nothing gives the parameters gradients, to which the sum is written.
            passes.push(Pass {
                places: batch.end..batch.end,
                slice: u64::from(self.num_slices),
                ends_slice: false,
                is_last: true,
            });
        }
        if let Some(last) = passes.last_mut() {
            last.is_last = true;
        }
        passes
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
        pass: &Pass,
        loss_sum: &Tensor,
        parameters: &mut Parameters,
    ) -> Result<(), SyncError> {
        let loss = loss_sum.f_detach()?.f_view([1])?;
        let loss = match self.loss.take() {
            None => loss,
            Some(before) => before.f_add(&loss)?,
        };
        if !pass.ends_slice {
            self.loss = Some(loss);
            return Ok(());
        }
        let slice = u32::try_from(pass.slice).unwrap_or(u32::MAX);
        let sum = gathered(parameters, loss)?;
        let mut failed = None;
        self.partial.add(slice, sum, |mut left, right| {
            failed = left.f_add_(&right).err();
            left
        });
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    fn finish(&mut self, parameters: &mut Parameters) -> Result<Finished, SyncError> {
        let fresh = Partial::new(self.num_slices, self.owned_by(self.rank));
        self.loss = None;
        let own: Vec<(Node, Tensor)> = std::mem::replace(&mut self.partial, fresh)
            .into_nodes()
            .collect();
        // Statistics are summed, too.
        let length: usize = parameters.tensors().iter().map(Tensor::numel).sum();
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        let sum = self.total(own, length + 1, parameters.device())?;
        scatter(&sum, parameters)?;
        let digest = match (&self.exchange, self.commit) {
            (Some(_), Commit::Device) => Some(roundhouse_c10d::digest(std::slice::from_ref(&sum))?),
            _ => None,
        };
        Ok(Finished {
            numbers: None,
            // A copy: it does not keep all the gradients.
            loss_sum: Some(sum.f_narrow(0, length, 1)?.f_to_kind(tch::Kind::Double)?),
            digest,
        })
    }
}

fn sum_of(num_slices: u32, nodes: Vec<(Node, Tensor)>) -> Result<Tensor, SyncError> {
    let mut failed = None;
    let sum = total(num_slices, nodes, |left, right| match left.f_add(&right) {
        Ok(sum) => sum,
        Err(error) => {
            failed = Some(error);
            left
        }
    });
    match (sum, failed) {
        (_, Some(error)) => Err(error.into()),
        (Some(sum), None) => Ok(sum),
        (None, None) => Err(TchError::Torch("the sum of no slices".to_owned()).into()),
    }
}

/// All gradients and the loss in one row; the gradients begin anew.
fn gathered(parameters: &mut Parameters, loss: Tensor) -> Result<Tensor, TchError> {
    let mut row = Vec::with_capacity(parameters.tensors().len() + 1);
    for tensor in parameters.tensors() {
        row.push(tensor.f_grad()?.f_reshape([-1])?);
    }
    row.push(loss);
    // Makes +0 of -0, which only a rank's first slice could have left.
    let sum = Tensor::f_cat(&row, 0)?.f_add_scalar_(0.0)?;
    for tensor in parameters.tensors_mut() {
        let _ = tensor.f_grad()?.f_zero_()?;
    }
    Ok(sum)
}

/// Writes a row of gradients into the parameters.
fn scatter(row: &Tensor, parameters: &mut Parameters) -> Result<(), TchError> {
    let mut at = 0;
    for tensor in parameters.tensors_mut() {
        let mut gradient = tensor.f_grad()?;
        let length = i64::try_from(gradient.numel()).unwrap_or(i64::MAX);
        let part = row.f_narrow(0, at, length)?.f_view_as(&gradient)?;
        gradient.f_copy_(&part)?;
        at += length;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
