//! Gradients that are equal bit for bit for every number of ranks.
//!
//! Each global batch is cut into V fixed slices. A rank computes its slices one after the other,
//! each in a separate pass, so kernels see the same shapes for every number of ranks. Gradients and
//! losses are summed along one binary tree over the slices ([`roundhouse_elastic::slices`]). First
//! each rank sums the nodes of the tree that it owns completely. Then each rank receives one chunk
//! of the remaining nodes of all ranks and sums the rest of the tree for this chunk. Finally the
//! ranks gather the chunks.
//!
//! With n gradients of 4 bytes and k nodes left on a rank (1 if each rank owns 2^i slices, never
//! more than 2·log2(V/W) + 2), a rank sends `(k + 1) · 4n · (W - 1) / W` bytes. A ring all-reduce
//! sends `2 · 4n · (W - 1) / W`. The communication does not overlap the backward pass.

use std::ops::Range;
use std::sync::Arc;

use roundhouse_elastic::micro::micro_batches;
use roundhouse_elastic::slices::{Node, Partial, nodes, owned, places, total};
use tch::{Device, TchError, Tensor};

use super::{Commit, Finished, Pass, Sync, SyncError};
use crate::parameters::Parameters;

/// The collectives that [`Slices`] needs of a process group.
pub trait Exchange: std::fmt::Debug {
    /// Sends each rank its part of `input`, and returns the parts that all ranks have sent to this
    /// rank, in the order of the ranks. `to` and `from` are the lengths of these parts.
    ///
    /// # Errors
    /// A peer is lost.
    fn all_to_all(&self, input: &Tensor, to: &[i64], from: &[i64]) -> Result<Tensor, SyncError>;

    /// Returns the concatenated chunks of all ranks. All chunks have the same length.
    ///
    /// # Errors
    /// A peer is lost.
    fn all_gather(&self, chunk: &Tensor) -> Result<Tensor, SyncError>;
}

/// Sums gradients over the ranks of a process group along a fixed tree.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "counts are named num_")]
pub struct Slices {
    exchange: Option<Arc<dyn Exchange>>,
    num_slices: u32,
    rank: u32,
    world_size: u32,
    micro_batch_size: Option<u32>,
    commit: Commit,
    /// The sums of this step so far; each is a row of all gradients and the loss.
    partial: Partial<Tensor>,
    loss: Option<Tensor>,
}

impl Slices {
    /// A rank of a process group. Without an exchange the process trains alone.
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

    /// Number of slices of a batch.
    pub(super) const fn num_slices(&self) -> u32 {
        self.num_slices
    }

    /// The slices of this rank, in the order in which it must add them.
    pub(super) fn own(&self) -> Range<u32> {
        self.owned_by(self.rank)
    }

    /// Adds a row of all gradients and the loss of the next slice.
    pub(super) fn add(&mut self, slice: u32, row: Tensor) -> Result<(), TchError> {
        let mut failed = None;
        self.partial.add(slice, row, |mut left, right| {
            failed = left.f_add_(&right).err();
            left
        });
        failed.map_or(Ok(()), Err)
    }

    fn owned_by(&self, rank: u32) -> Range<u32> {
        owned(self.num_slices, rank, self.world_size)
    }

    /// Computes the total sum from the nodes of this rank and of its peers.
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
        // [ranks, nodes, chunk]: the values for one rank are contiguous.
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
                is_idle: false,
            }));
        }
        if passes.is_empty() {
            // A pass over no sample creates the gradients of the parameters, into which the sum is
            // written.
            passes.push(Pass {
                places: batch.end..batch.end,
                slice: u64::from(self.num_slices),
                ends_slice: false,
                is_last: true,
                is_idle: false,
            });
        }
        if let Some(last) = passes.last_mut() {
            last.is_last = true;
        }
        passes
    }

    fn after_backward(
        &mut self,
        pass: &Pass,
        loss_sum: &Tensor,
        parameters: &mut Parameters,
    ) -> Result<(), SyncError> {
        let loss = with_loss(self.loss.take(), loss_sum)?;
        if !pass.ends_slice {
            self.loss = Some(loss);
            return Ok(());
        }
        let slice = u32::try_from(pass.slice).unwrap_or(u32::MAX);
        Ok(self.add(slice, gathered(parameters, loss)?)?)
    }

    fn finish(&mut self, parameters: &mut Parameters) -> Result<Finished, SyncError> {
        let fresh = Partial::new(self.num_slices, self.owned_by(self.rank));
        self.loss = None;
        let own: Vec<(Node, Tensor)> = std::mem::replace(&mut self.partial, fresh)
            .into_nodes()
            .collect();
        // Running statistics are summed like gradients.
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
            // Converting copies the element, so the result does not keep the whole row alive.
            loss_sum: Some(sum.f_narrow(0, length, 1)?.f_to_kind(tch::Kind::Double)?),
            digest,
        })
    }
}

/// The loss of a slice with that of its next pass, as one element without a graph.
pub(super) fn with_loss(sum: Option<Tensor>, loss: &Tensor) -> Result<Tensor, TchError> {
    let loss = loss.f_detach()?.f_view([1])?;
    match sum {
        None => Ok(loss),
        Some(sum) => sum.f_add(&loss),
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

/// Moves all gradients and the loss into one row, and sets the gradients to zero.
fn gathered(parameters: &mut Parameters, loss: Tensor) -> Result<Tensor, TchError> {
    let mut row = Vec::with_capacity(parameters.tensors().len() + 1);
    for tensor in parameters.tensors() {
        row.push(tensor.f_grad()?.f_reshape([-1])?);
    }
    row.push(loss);
    // Turn -0 into +0: a rank's first slice could leave -0, a sum with other slices could not.
    let sum = Tensor::f_cat(&row, 0)?.f_add_scalar_(0.0)?;
    for tensor in parameters.tensors_mut() {
        let _ = tensor.f_grad()?.f_zero_()?;
    }
    Ok(sum)
}

/// Writes a row of gradients to the parameters.
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
