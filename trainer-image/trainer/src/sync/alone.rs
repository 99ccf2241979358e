//! A process that trains alone: there is nothing to synchronize.

use std::ops::Range;

use roundhouse_elastic::micro::micro_batches_of_groups;

use super::{Finished, Pass, Sync, SyncError};
use crate::parameters::Parameters;

/// Computes the whole batch in one process.
#[derive(Debug)]
pub struct Alone {
    micro_batch_size: Option<u32>,
    group_size: u64,
}

impl Alone {
    /// Passes have at most `micro_batch_size` samples (`None`: no bound) and are cut at multiples
    /// of `group_size` places.
    #[must_use]
    pub const fn new(micro_batch_size: Option<u32>, group_size: u64) -> Self {
        Self {
            micro_batch_size,
            group_size,
        }
    }
}

impl Sync for Alone {
    fn passes(&self, batch: &Range<u64>) -> Vec<Pass> {
        in_pieces(batch, batch, self.micro_batch_size, self.group_size)
    }

    fn finish(&mut self, _: &mut Parameters) -> Result<Finished, SyncError> {
        Ok(Finished::default())
    }
}

/// Splits a rank's part of a batch into passes of at most `most` samples. The slice of a pass,
/// which seeds its random numbers, is its first place in the batch.
pub(super) fn in_pieces(
    batch: &Range<u64>,
    part: &Range<u64>,
    most: Option<u32>,
    group_size: u64,
) -> Vec<Pass> {
    let pieces = micro_batches_of_groups(part, most, group_size);
    let last = pieces.len() - 1;
    let pass = |(index, places): (usize, Range<u64>)| Pass {
        slice: places.start - batch.start,
        places,
        ends_slice: true,
        is_last: index == last,
        is_idle: false,
    };
    pieces.into_iter().enumerate().map(pass).collect()
}
