//! The sum at the end of a step on which ranks decide, without making the host wait for the device.

use std::ptr::{NonNull, null, null_mut};

use tch::Tensor;

use crate::error::{Error, Result, check};
use crate::ffi;
use crate::group::ProcessGroup;
use crate::stream::Event;
use crate::tensors::pointer;

/// Relative to the sum of magnitudes. Each half may be summed in another order, over thousands of ranks.
const TOLERANCE: f64 = 1e-11;
const NUM_FACTORS: u64 = 8;

/// Values that were summed over a group, some of them perhaps still on their way.
#[derive(Debug)]
pub struct Agreement {
    sums: Tensor,
    found_inf: Tensor,
    host: Tensor,
    event: Event,
}

/// What an [`Agreement`] has come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreed {
    /// The sums, in the order of the values.
    pub sums: Vec<f64>,
    /// All sums are what all ranks gave, and nothing that must be finite was not. Else `sums` may be garbage, and
    /// an update under [`Agreement::found_inf`] was not made.
    pub is_good: bool,
}

/// Sums `values` (f64, one dimension, on the device of the group) over the group, after what is in the stream
/// already, say the gradient buckets. No group: this process is alone.
///
/// - A sum is good if it is finite and its witness is right: with each value `v` travel `|v|` and, for both,
///   `k·(1 - x)` with `k` of this `turn`. Value and witness tell of how many ranks they are the sum, and garbage of an
///   aborted collective, or what is left of an earlier turn, does not. All ranks give the same `turn`, another one
///   each time.
/// - `finite`: if an element of it is not finite on one rank, the agreement is not good on any.
///
/// # Errors
/// A peer is gone (Gloo), the group was aborted, or `values` is no list of f64.
pub fn agree(
    values: &Tensor,
    finite: Option<&Tensor>,
    turn: u64,
    group: Option<&ProcessGroup>,
) -> Result<Agreement> {
    let size = f64::from(group.map_or(1, ProcessGroup::world_size));
    // A power of two, so that nothing is rounded.
    let factor = f64::from(2_u32 << (turn % NUM_FACTORS));
    let [mut sums, mut found_inf, mut host] = [null_mut(); 3];
    let mut event = null_mut();
    let mut call = |raw| {
        let (values, finite) = (values.as_ptr(), pointer(finite));
        let outs = (&raw mut sums, &raw mut found_inf, &raw mut host);
        // SAFETY: group and tensors are live or null where that is allowed; all outs are valid for a write.
        unsafe {
            let event = &raw mut event;
            ffi::rh_agree(
                raw, values, finite, factor, size, TOLERANCE, outs.0, outs.1, outs.2, event,
            )
        }
    };
    match group {
        Some(group) => group.collective(call)?,
        None => check(call(null()))?,
    }
    let event = NonNull::new(event).ok_or_else(|| Error::refused("the bridge made no event"))?;
    // SAFETY: the bridge has made each with `new`, as tch expects.
    let [sums, found_inf, host] =
        [sums, found_inf, host].map(|made| unsafe { Tensor::from_ptr(made) });
    Ok(Agreement {
        sums,
        found_inf,
        host,
        event: Event::from_raw(event),
    })
}

impl Agreement {
    /// The sums on the device (f64).
    pub const fn sums(&self) -> &Tensor {
        &self.sums
    }

    /// On the device (f32, one element): 0 if the agreement is good, else 1. For [`Gate`](crate::Gate).
    pub const fn found_inf(&self) -> &Tensor {
        &self.found_inf
    }

    /// Whether [`Self::wait`] returns at once.
    ///
    /// # Errors
    /// The device has failed.
    pub fn is_there(&self) -> Result<bool> {
        self.event.has_passed()
    }

    /// Reads the sums, best one step later. If the group was aborted meanwhile the agreement is not good.
    ///
    /// # Errors
    /// The device has failed.
    pub fn wait(&self) -> Result<Agreed> {
        self.event.wait()?;
        let mut sums = Vec::<f64>::try_from(&self.host)?;
        let is_good = sums.pop() == Some(0.0);
        Ok(Agreed { sums, is_good })
    }
}

#[cfg(test)]
mod tests;
