//! The vote of the ranks at the end of a step: a sum that does not make the host wait for the
//! device.

use std::ptr::{NonNull, null, null_mut};

use tch::Tensor;

use crate::error::{Error, Result, check};
use crate::ffi;
use crate::group::ProcessGroup;
use crate::stream::Event;
use crate::tensors::pointer;

/// Tolerance relative to the sum of magnitudes. Thousands of ranks may sum the values and their
/// checksums in different orders.
const TOLERANCE: f64 = 1e-11;
const NUM_FACTORS: u64 = 8;

/// A sum over a group that was launched and may not be complete yet.
#[derive(Debug)]
pub struct Agreement {
    sums: Tensor,
    found_inf: Tensor,
    host: Tensor,
    num_aside: usize,
    event: Event,
}

/// The input of one process to an [`Agreement`]. All tensors are on the device of the group.
#[derive(Clone, Copy, Debug)]
pub struct Vote<'a> {
    /// Values to sum: f64, one dimension.
    pub values: &'a Tensor,
    /// If an element is not finite on one rank, the agreement is not good on any rank.
    pub finite: Option<&'a Tensor>,
    /// Values that must be the same on all ranks, such as digests of gradients: i64, one dimension.
    pub equal: Option<&'a Tensor>,
    /// Values that are not summed and are copied to the host with the sums: f64, one dimension.
    pub aside: Option<&'a Tensor>,
}

/// The result of an [`Agreement`] on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreed {
    /// The sums, in the order of the values.
    pub sums: Vec<f64>,
    /// The values of [`Vote::aside`] of this process.
    pub aside: Vec<f64>,
    /// Whether the sums contain the values of all ranks and no rank was aborting the group.
    /// Otherwise they are garbage.
    pub is_right: bool,
    /// Whether [`Vote::equal`] is the same on all ranks.
    pub is_same: bool,
    /// Whether both are true and [`Vote::finite`] is finite. Otherwise an update under
    /// [`Agreement::found_inf`] has changed nothing.
    pub is_good: bool,
}

/// Sums [`Vote::values`] over the group, after the work that is already in the stream, such as the
/// gradient buckets. Without a group this process is alone.
///
/// A sum is right if it is finite and matches its checksum. With each value `v` the ranks also sum
/// `|v|` and, for both, the checksum `k·(1 - x)`, where `k` depends on `turn`. The sum of a value
/// and its checksum show how many ranks they cover. Garbage of an aborted collective, or values of
/// an earlier turn, do not match. All ranks must pass the same `turn`, and another one for each
/// call.
///
/// # Errors
/// A peer is lost (Gloo), the group was aborted, or a list has another type.
pub fn agree(vote: Vote<'_>, turn: u64, group: Option<&ProcessGroup>) -> Result<Agreement> {
    let size = f64::from(group.map_or(1, ProcessGroup::world_size));
    // A power of two, so that the multiplication does not round.
    let factor = f64::from(2_u32 << (turn % NUM_FACTORS));
    let Vote {
        values,
        finite,
        equal,
        aside,
    } = vote;
    let num_aside = aside.map_or(0, Tensor::numel);
    let [mut sums, mut found_inf, mut host] = [null_mut(); 3];
    let mut event = null_mut();
    let mut call = |raw| {
        let (values, finite) = (values.as_ptr(), pointer(finite));
        let (equal, aside) = (pointer(equal), pointer(aside));
        let outs = (&raw mut sums, &raw mut found_inf, &raw mut host);
        let event = &raw mut event;
        // SAFETY: group and tensors are live, or null where the bridge allows it; all outs are
        // valid for a write.
        unsafe {
            ffi::rh_agree(
                raw, values, finite, equal, aside, factor, size, TOLERANCE, outs.0, outs.1, outs.2,
                event,
            )
        }
    };
    let result = match group {
        Some(group) => group.collective(call),
        None => check(call(null())),
    };
    // Take ownership before the error check, so that an aborted group does not leak them.
    let made = NonNull::new(event).map(|event| {
        // SAFETY: the bridge created each tensor with `new`, as tch expects, before it created the
        // event.
        let tensors = [sums, found_inf, host].map(|made| unsafe { Tensor::from_ptr(made) });
        (tensors, Event::from_raw(event))
    });
    result?;
    let ([sums, found_inf, host], event) =
        made.ok_or_else(|| Error::refused("the bridge created no event"))?;
    Ok(Agreement {
        sums,
        found_inf,
        host,
        num_aside,
        event,
    })
}

impl Agreement {
    /// The sums on the device, as f64.
    pub const fn sums(&self) -> &Tensor {
        &self.sums
    }

    /// The flag on the device (f32, one element): 0 if the agreement is good, else 1. For
    /// [`Gate`](crate::Gate).
    pub const fn found_inf(&self) -> &Tensor {
        &self.found_inf
    }

    /// Whether [`Self::wait`] returns at once.
    ///
    /// # Errors
    /// The device reports a failure.
    pub fn is_there(&self) -> Result<bool> {
        self.event.has_passed()
    }

    /// Waits for the sums and reads them; call it one step later. The result is what the device has
    /// done, even if the group has been aborted since.
    ///
    /// # Errors
    /// The device reports a failure.
    pub fn wait(&self) -> Result<Agreed> {
        self.wait_until(&self.event)
    }

    /// Like [`Self::wait`], but waits for an event that was recorded in the same stream after the
    /// agreement.
    ///
    /// # Errors
    /// The device reports a failure.
    pub fn wait_until(&self, later: &Event) -> Result<Agreed> {
        later.wait()?;
        self.read()
    }

    /// Returns the result of [`Self::wait`], or `None` if the host would have to wait.
    ///
    /// # Errors
    /// The device reports a failure.
    pub fn peek(&self) -> Result<Option<Agreed>> {
        if self.is_there()? {
            return self.read().map(Some);
        }
        Ok(None)
    }

    fn read(&self) -> Result<Agreed> {
        let mut sums = Vec::<f64>::try_from(&self.host)?;
        let is_good = sums.pop() == Some(0.0);
        let is_same = sums.pop() == Some(0.0);
        let is_right = sums.pop() == Some(0.0);
        let aside = sums.split_off(sums.len().saturating_sub(self.num_aside));
        Ok(Agreed {
            sums,
            aside,
            is_right,
            is_same,
            is_good,
        })
    }
}

#[cfg(test)]
mod tests;
