//! Experts that are spread over the processes of a group.

use std::ptr::NonNull;

use tch::{TchError, Tensor};

use crate::error::{Error, Result};
use crate::sharding::Sharding;
use crate::store::make;
use crate::tensors::made;
use crate::{ffi, segment};

/// A handle of a [`Sharding`] for the experts among its units. Segments may use it, which run on
/// any thread.
///
/// Such a unit is the weights of the experts of one process, one after the other: see
/// [`Sharding::add`] with their places in `shard`. Other processes have other experts. The weights
/// are never gathered. Instead each process sends the rows of its input to the processes that have
/// the experts, and they send the outputs back.
#[derive(Debug)]
pub struct Experts {
    raw: NonNull<ffi::RhSharding>,
}

// SAFETY: the bridge locks the units while a thread uses them.
unsafe impl Send for Experts {}
// SAFETY: as above.
unsafe impl Sync for Experts {}

impl Experts {
    /// A handle for the experts of a model.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn of(sharding: &Sharding) -> Result<Self> {
        // SAFETY: the sharding is live, and the bridge shares the units.
        let raw = make(|out| unsafe { ffi::rh_sharding_share(sharding.as_ptr(), out) })?;
        Ok(Self { raw })
    }

    /// The outputs of all experts, for `x` whose first dimension has equal numbers of rows for each
    /// expert, in the order of the experts. Each process has `count` of them, in the order of the
    /// processes.
    ///
    /// `run` computes this process' experts, with rows in the same order and the weights of its
    /// unit. It is called once for the rows of all processes, or once for those of each process if
    /// gradients stay apart, and must keep the first dimension. All processes must call this in
    /// the same order, with the same number of rows in all calls of a pass, which may differ
    /// between processes.
    ///
    /// # Errors
    /// `run` fails, a process of the group is lost, there is no such unit, or the rows cannot be
    /// divided.
    pub fn apply<F>(&self, unit: usize, count: i64, x: &Tensor, run: F) -> Result<Tensor>
    where
        F: FnMut(&Tensor, Vec<Tensor>) -> std::result::Result<Tensor, TchError> + Send + 'static,
    {
        if count < 1 {
            return Err(Error::refused("each process needs an expert"));
        }
        let raw = self.raw.as_ptr();
        let segment = segment::raw(run);
        // SAFETY: handle, tensor and segment are live. The bridge checks the unit's index and frees
        // the segment once; the graph shares the units.
        made(|out| unsafe {
            ffi::rh_experts(raw, unit, count, x.as_ptr(), &raw const segment, out)
        })
    }
}

impl Drop for Experts {
    fn drop(&mut self) {
        // SAFETY: the bridge created the handle, and this frees it once.
        unsafe { ffi::rh_sharding_free(self.raw.as_ptr()) }
    }
}
