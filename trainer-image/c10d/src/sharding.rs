//! Weights that are sharded over the processes of a group (`ZeRO` stages 2 and 3; Rajbhandari et
//! al., 2020).

use std::cell::Cell;
use std::ptr::NonNull;

use tch::{TchError, Tensor};

use crate::error::{Error, Result, check, text};
use crate::group::ProcessGroup;
use crate::store::make;
use crate::tensors::{made, pointer, pointers};
use crate::{ffi, segment};

/// The weights of a model in units, which are sharded over the processes of a group.
///
/// A unit is the weights of one segment of the model as one vector of `P · n` elements, of which
/// process `r` of `P` has the part from `r · n` on. [`Self::apply`] gathers the vector, runs the
/// segment with it, and drops it. The backward pass gathers it again, and sends the gradient of
/// each part to the process that has the part, where they become `P` rows of `n` elements. The sum
/// of the rows is the gradient of the sum of the processes' losses.
///
/// While a segment runs, the next one is gathered, and gradients of the previous one are exchanged.
/// So at most five vectors exist at a time: the weights of two units, the gradients of two, and the
/// gradients that arrive. If the vectors stay, there are three beside them.
///
/// All processes must apply the same units in the same order, in the same number of passes. After
/// an error of a collective the group can no longer be used: see [`Self::failure`].
#[derive(Debug)]
pub struct Sharding {
    raw: NonNull<ffi::RhSharding>,
    num_units: Cell<usize>,
}

impl Sharding {
    /// Without units yet. With `keeps_whole` the vectors stay, and only gradients are sharded; the
    /// caller must then update the other processes' parts of the vectors. With `sums` the gradients
    /// of all processes are summed as they arrive, in the order of the processes.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn new(group: &ProcessGroup, keeps_whole: bool, sums: bool) -> Result<Self> {
        let group = group.as_ptr();
        // SAFETY: the group is live, and the bridge keeps a handle of it.
        let raw = make(|out| unsafe { ffi::rh_sharding_new(group, keeps_whole, sums, out) })?;
        Ok(Self {
            raw,
            num_units: Cell::new(0),
        })
    }

    pub(crate) const fn as_ptr(&self) -> *const ffi::RhSharding {
        self.raw.as_ptr()
    }

    /// Adds a unit of tensors with the shapes of `like`, which start at these elements of the
    /// vector, and returns its index. `shard` is the part of this process, a leaf. `whole` is the
    /// vector if it stays.
    ///
    /// # Errors
    /// There is too little memory, or a tensor has no start.
    pub fn add(
        &self,
        like: &[Tensor],
        starts: &[i64],
        shard: &Tensor,
        whole: Option<&Tensor>,
    ) -> Result<usize> {
        if like.len() != starts.len() {
            return Err(Error::refused("each tensor of a unit needs a start"));
        }
        let (list, whole) = (pointers(like), pointer(whole));
        // SAFETY: sharding, tensors and lists are live. The bridge keeps handles of its own.
        check(unsafe {
            let (raw, count) = (self.raw.as_ptr(), list.len());
            let (list, starts) = (list.as_ptr(), starts.as_ptr());
            ffi::rh_sharding_add(raw, list, count, starts, shard.as_ptr(), whole)
        })?;
        Ok(self.num_units.replace(self.num_units.get() + 1))
    }

    /// Computes `run(x, weights)` with the weights of a unit. `x` may be of any type. With
    /// `recomputes` the backward pass runs the segment again, as [`recompute`](crate::recompute)
    /// describes; otherwise the activations stay, but not the weights. Autocast copies of the
    /// weights in 16 bits are activations.
    ///
    /// # Errors
    /// The segment fails, a process of the group is lost, or there is no such unit.
    pub fn apply<F>(&self, unit: usize, recomputes: bool, x: &Tensor, run: F) -> Result<Tensor>
    where
        F: FnMut(&Tensor, Vec<Tensor>) -> std::result::Result<Tensor, TchError> + Send + 'static,
    {
        if unit >= self.num_units.get() {
            return Err(Error::refused(format!("there is no unit {unit}")));
        }
        let raw = self.raw.as_ptr();
        let segment = segment::raw(run);
        // SAFETY: sharding, tensor and segment are live. The bridge frees the segment once; the
        // graph shares the units.
        made(|out| unsafe {
            ffi::rh_sharded(raw, unit, recomputes, x.as_ptr(), &raw const segment, out)
        })
    }

    /// Begins a pass. Must be called before each forward pass, also of an evaluation.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn begin_pass(&self) -> Result<()> {
        // SAFETY: the sharding is live.
        check(unsafe { ffi::rh_sharding_begin_pass(self.raw.as_ptr()) })
    }

    /// Waits for the gradients of the pass. Must be called after each backward pass.
    ///
    /// # Errors
    /// A process of the group is lost.
    pub fn end_pass(&self) -> Result<()> {
        // SAFETY: the sharding is live.
        check(unsafe { ffi::rh_sharding_end_pass(self.raw.as_ptr()) })
    }

    /// Drops the gradients of all passes, and everything of passes that have not ended.
    ///
    /// # Errors
    /// libtorch fails; no state of this object can cause this.
    pub fn abandon(&self) -> Result<()> {
        // SAFETY: the sharding is live.
        check(unsafe { ffi::rh_sharding_abandon(self.raw.as_ptr()) })
    }

    /// Takes the gradients of this process' part of a unit, summed over the passes since the last
    /// call: `[P, n]`, with a row for the passes of each process, or `[1, n]` with their sum.
    ///
    /// # Errors
    /// There is too little memory, or there is no such unit.
    pub fn gradients(&self, unit: usize) -> Result<Tensor> {
        // SAFETY: the sharding is live.
        made(|out| unsafe { ffi::rh_sharding_gradients(self.raw.as_ptr(), unit, out) })
    }

    /// The first error of a collective. Errors of passes may have it as their cause, or be caused
    /// by the segments.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let raw = self.raw.as_ptr();
        // SAFETY: the sharding is live, and the call gets the context of its function.
        text(|context, consume| unsafe { ffi::rh_sharding_failure(raw, context, consume) })
    }
}

impl Drop for Sharding {
    fn drop(&mut self) {
        // SAFETY: the bridge created the handle, and this frees it once.
        unsafe { ffi::rh_sharding_free(self.raw.as_ptr()) }
    }
}
