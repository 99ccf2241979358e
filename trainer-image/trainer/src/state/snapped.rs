//! A snapshot of a part of a GPU's state, on its way to pinned memory. The compute stream gathers
//! the part on the device between two steps, and another stream copies it to the host while steps
//! run. Training waits for neither, and no later step changes the snapshot.

use std::ops::Range;

use roundhouse_c10d::{Error, HostCopy};
use roundhouse_member::failure::Failure;
use roundhouse_member::state::{Snapshot, reused};
use tch::{Device, TchError};

use super::Tensors;
use crate::failure::lost;

#[derive(Debug)]
pub(super) struct Snapped(HostCopy);

impl Snapped {
    /// Starts the copy of a range of the state's bytes.
    ///
    /// # Errors
    /// The device or the host has too little memory, or the device fails.
    pub(super) fn begin(
        state: &Tensors,
        range: &Range<u64>,
        former: Option<Box<dyn Snapshot>>,
        device: Device,
    ) -> Result<Self, Error> {
        let out_of_range = || TchError::Shape(format!("bytes {range:?} of a state"));
        if range.end > state.table.num_bytes() {
            return Err(out_of_range().into());
        }
        let length = usize::try_from(range.end - range.start).map_err(|_| out_of_range())?;
        let former = reused::<Self>(former).filter(|former| former.0.len() == length);
        let mut copy = match former {
            Some(Self(copy)) => copy,
            None => HostCopy::new(length, device)?,
        };
        copy.begin(|gathered| state.flatten(range, gathered))?;
        Ok(Self(copy))
    }
}

impl Snapshot for Snapped {
    fn bytes(&mut self) -> Result<&[u8], Failure> {
        self.0.bytes().map_err(lost)
    }
}
