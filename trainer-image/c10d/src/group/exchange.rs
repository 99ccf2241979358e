//! Collectives that gather, scatter or exchange parts of tensors. They fail and are aborted in the
//! same way as [`ProcessGroup::all_reduce`].

use std::ptr::NonNull;

use tch::Tensor;

use super::{ProcessGroup, fit};
use crate::error::{Error, Result};
use crate::ffi;

impl ProcessGroup {
    /// Concatenates the tensors of all ranks, in the order of the ranks, into `output`, which has
    /// `world_size` times as many elements as `input`. All ranks must pass the same shape.
    ///
    /// # Errors
    /// A peer is lost or does not answer, a tensor is not contiguous, or sizes or kinds do not
    /// match.
    pub fn all_gather(&self, output: &mut Tensor, input: &Tensor) -> Result<()> {
        self.times(output, input)?;
        let (output, input) = (output.as_mut_ptr(), input.as_ptr());
        // SAFETY: group and tensors are live; the bridge keeps none.
        self.collective(|group| unsafe { ffi::rh_group_all_gather(group, output, input) })
    }

    /// Sums `input` over the ranks. Rank `r` gets the `r`-th of `world_size` parts of the first
    /// dimension in `output`.
    ///
    /// # Errors
    /// The same as [`Self::all_gather`].
    pub fn reduce_scatter(&self, output: &mut Tensor, input: &Tensor) -> Result<()> {
        self.times(input, output)?;
        let (output, input) = (output.as_mut_ptr(), input.as_ptr());
        // SAFETY: group and tensors are live; the bridge keeps none.
        self.collective(|group| unsafe { ffi::rh_group_reduce_scatter(group, output, input) })
    }

    /// Sends `go[r]` rows of `input`, in order, to each rank `r`, and receives `come[r]` rows from
    /// it into `output`. Rows are along the first dimension. The number of rows that a rank sends
    /// must equal the number that the other rank receives.
    ///
    /// # Errors
    /// The same as [`Self::all_gather`].
    pub fn all_to_all(
        &self,
        output: &mut Tensor,
        input: &Tensor,
        come: &[i64],
        go: &[i64],
    ) -> Result<()> {
        for (tensor, rows) in [(&*output, come), (input, go)] {
            fit(tensor)?;
            let given = tensor.size().first().copied().unwrap_or(0);
            let is_split = rows.len() == self.world_size as usize
                && rows.iter().all(|rows| *rows >= 0)
                && rows.iter().sum::<i64>() == given;
            if !is_split {
                let size = self.world_size;
                return Err(Error::refused(format!(
                    "{given} rows as {rows:?} for {size} ranks"
                )));
            }
        }
        same_kind(output, input)?;
        let (output, input) = (output.as_mut_ptr(), input.as_ptr());
        let (come, go) = (come.as_ptr(), go.as_ptr());
        // SAFETY: group and tensors are live; both lists have an entry for each rank.
        self.collective(|group| unsafe { ffi::rh_group_all_to_all(group, output, input, come, go) })
    }

    /// Sends the tensor to another rank, which must receive a tensor of the same shape and kind.
    ///
    /// # Errors
    /// A peer is lost or does not answer, the tensor is not contiguous, or there is no other rank
    /// with this number.
    pub fn send(&self, tensor: &Tensor, to: u32) -> Result<()> {
        fit(tensor)?;
        let peer = self.peer(to)?;
        // SAFETY: group and tensor are live; the bridge keeps neither.
        self.collective(|group| unsafe { ffi::rh_group_send(group, tensor.as_ptr(), peer) })
    }

    /// Receives a tensor that another rank sends.
    ///
    /// # Errors
    /// The same as [`Self::send`].
    pub fn receive(&self, tensor: &mut Tensor, from: u32) -> Result<()> {
        fit(tensor)?;
        let peer = self.peer(from)?;
        let tensor = tensor.as_mut_ptr();
        // SAFETY: group and tensor are live; the bridge keeps neither.
        self.collective(|group| unsafe { ffi::rh_group_receive(group, tensor, peer) })
    }

    /// Starts to send a tensor to one rank and to receive a tensor from another rank at the same
    /// time. [`Exchange::wait`] waits for both. [`ProcessGroup::all_reduce`] describes when the
    /// received tensor is complete.
    ///
    /// # Errors
    /// The same as [`Self::send`].
    pub fn exchange<'a>(
        &'a self,
        send: Option<(&'a Tensor, u32)>,
        receive: Option<(&'a mut Tensor, u32)>,
    ) -> Result<Exchange<'a>> {
        let (mut outgoing, mut to) = (std::ptr::null(), 0);
        if let Some((tensor, peer)) = send {
            fit(tensor)?;
            (outgoing, to) = (tensor.as_ptr(), self.peer(peer)?);
        }
        let (mut incoming, mut from) = (std::ptr::null_mut(), 0);
        if let Some((tensor, peer)) = receive {
            fit(tensor)?;
            (incoming, from) = (tensor.as_mut_ptr(), self.peer(peer)?);
        }
        let mut raw = std::ptr::null_mut();
        // SAFETY: group and tensors are live, or the pointers are null; the bridge keeps handles of
        // the tensors. `raw` is valid for a write.
        self.collective(|group| unsafe {
            ffi::rh_group_exchange(group, outgoing, to, incoming, from, &raw mut raw)
        })?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::refused("nothing to exchange"))?;
        Ok(Exchange { group: self, raw })
    }

    fn peer(&self, rank: u32) -> Result<std::ffi::c_int> {
        if rank == self.rank {
            return Err(Error::refused(format!("rank {rank} is this process")));
        }
        self.root(rank)
    }

    /// Checks that `all` has as many elements as the parts of all ranks together.
    fn times(&self, all: &Tensor, part: &Tensor) -> Result<()> {
        fit(all)?;
        fit(part)?;
        same_kind(all, part)?;
        let (all, part, size) = (all.numel(), part.numel(), self.world_size as usize);
        if all != part * size {
            return Err(Error::refused(format!(
                "{all} elements for {size} ranks of {part}"
            )));
        }
        Ok(())
    }
}

/// A running exchange of tensors between this rank and others. It borrows the tensors until it
/// ends.
#[derive(Debug)]
pub struct Exchange<'a> {
    group: &'a ProcessGroup,
    raw: NonNull<ffi::RhExchange>,
}

impl Exchange<'_> {
    /// Waits until both transfers are complete.
    ///
    /// # Errors
    /// A peer is lost or does not answer, or the group was aborted.
    pub fn wait(self) -> Result<()> {
        // SAFETY: the exchange is live.
        let wait = |_| unsafe { ffi::rh_exchange_wait(self.raw.as_ptr()) };
        self.group.collective(wait)
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        // SAFETY: the bridge created the exchange, and this frees it once. A running transfer keeps
        // its own handles of the tensors.
        let _ = unsafe { ffi::rh_exchange_free(self.raw.as_ptr()) };
    }
}

fn same_kind(one: &Tensor, other: &Tensor) -> Result<()> {
    if (one.kind(), one.device()) != (other.kind(), other.device()) {
        return Err(Error::refused("tensors of different kinds or devices"));
    }
    Ok(())
}
