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
    num_aside: usize,
    event: Event,
}

/// What a process brings to an [`Agreement`]. All tensors are on the device of the group.
#[derive(Clone, Copy, Debug)]
pub struct Vote<'a> {
    /// What is summed: f64, one dimension.
    pub values: &'a Tensor,
    /// If an element of it is not finite on one rank, the agreement is not good on any.
    pub finite: Option<&'a Tensor>,
    /// What must be the same on all ranks: i64, one dimension. For example digests of what the ranks hold.
    pub equal: Option<&'a Tensor>,
    /// What is not summed, and comes to the host with the sums: f64, one dimension.
    pub aside: Option<&'a Tensor>,
}

/// What an [`Agreement`] has come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreed {
    /// The sums, in the order of the values.
    pub sums: Vec<f64>,
    /// [`Vote::aside`] of this process.
    pub aside: Vec<f64>,
    /// All sums are what all ranks gave, and no rank was aborting the group when it gave them. Else they are garbage.
    pub is_right: bool,
    /// [`Vote::equal`] is the same on all ranks.
    pub is_same: bool,
    /// Both, and all that must be finite is. Else an update under [`Agreement::found_inf`] was not made.
    pub is_good: bool,
}

/// Sums [`Vote::values`] over the group, after what is in the stream already, say the gradient buckets. No group:
/// this process is alone.
///
/// A sum is right if it is finite and its witness is right: with each value `v` travel `|v|` and, for both,
/// `k·(1 - x)` with `k` of this `turn`. Value and witness tell of how many ranks they are the sum, and garbage of an
/// aborted collective, or what is left of an earlier turn, does not. All ranks give the same `turn`, another one
/// each time.
///
/// # Errors
/// A peer is gone (Gloo), the group was aborted, or a list is not one of f64.
pub fn agree(vote: Vote<'_>, turn: u64, group: Option<&ProcessGroup>) -> Result<Agreement> {
    let size = f64::from(group.map_or(1, ProcessGroup::world_size));
    // A power of two, so that nothing is rounded.
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
        // SAFETY: group and tensors are live or null where that is allowed; all outs are valid for a write.
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
    // They are freed here if the group was aborted meanwhile.
    let made = NonNull::new(event).map(|event| {
        // SAFETY: the bridge has made each with `new`, as tch expects, before it made the event.
        let tensors = [sums, found_inf, host].map(|made| unsafe { Tensor::from_ptr(made) });
        (tensors, Event::from_raw(event))
    });
    result?;
    let ([sums, found_inf, host], event) =
        made.ok_or_else(|| Error::refused("the bridge made no event"))?;
    Ok(Agreement {
        sums,
        found_inf,
        host,
        num_aside,
        event,
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

    /// Reads the sums, best one step later. What it tells is what the device has done, also if the group was aborted
    /// since then.
    ///
    /// # Errors
    /// The device has failed.
    pub fn wait(&self) -> Result<Agreed> {
        self.wait_until(&self.event)
    }

    /// [`Self::wait`], but for an event that was recorded in the same stream after the agreement.
    ///
    /// # Errors
    /// The device has failed.
    pub fn wait_until(&self, later: &Event) -> Result<Agreed> {
        later.wait()?;
        self.read()
    }

    /// What [`Self::wait`] returns, if it is there; `None` if the host would have to wait for it.
    ///
    /// # Errors
    /// The device has failed.
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
