//! A batch that is being read. Each sample has a slot.

use std::sync::{Condvar, Mutex, PoisonError};

use bytes::BytesMut;

use super::Request;
use crate::batch::{HostBatch, Skipped};
use crate::dataset::Item;
use crate::error::DataError;

/// A sample that has been read, in its part of the batch's buffer.
#[derive(Debug)]
pub(super) struct Filled {
    pub(super) values: BytesMut,
    pub(super) label: i64,
    pub(super) skipped: Vec<Skipped>,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) request: Request,
    item: Item,
    slots: Mutex<Slots>,
    done: Condvar,
}

#[derive(Debug)]
struct Slots {
    filled: Vec<Option<Result<Filled, DataError>>>,
    num_left: usize,
}

impl Job {
    pub(super) fn new(request: Request, item: Item) -> Self {
        let num_samples = request.samples.len();
        let slots = Slots {
            filled: (0..num_samples).map(|_| None).collect(),
            num_left: num_samples,
        };
        Self {
            request,
            item,
            slots: Mutex::new(slots),
            done: Condvar::new(),
        }
    }

    pub(super) fn fill(&self, slot: usize, result: Result<Filled, DataError>) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = slots.filled.get_mut(slot) {
            *place = Some(result);
            slots.num_left -= 1;
        }
        if slots.num_left == 0 {
            self.done.notify_all();
        }
    }

    /// Waits for all samples and joins their parts of the buffer without copying.
    pub(super) fn wait(&self) -> Result<HostBatch, DataError> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        while slots.num_left > 0 {
            slots = self
                .done
                .wait(slots)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let filled = std::mem::take(&mut slots.filled);
        drop(slots);
        let mut batch = HostBatch {
            item: self.item.clone(),
            values: BytesMut::new(),
            labels: Vec::with_capacity(filled.len()),
            skipped: Vec::new(),
        };
        for result in filled.into_iter().flatten() {
            let Filled {
                values,
                label,
                skipped,
            } = result?;
            batch.values.unsplit(values);
            batch.labels.push(label);
            batch.skipped.extend(skipped);
        }
        Ok(batch)
    }
}
