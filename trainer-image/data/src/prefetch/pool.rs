//! The threads, and the samples that wait for one.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;

use super::OnCorrupt;
use super::job::{Filled, Job};
use crate::batch::Skipped;
use crate::dataset::{Dataset, Scratch};
use crate::error::DataError;
use crate::random::Random;

/// Maximum number of replacements that are tried for a corrupt sample.
const MAX_REPLACEMENTS: u32 = 16;
/// Seed for the choice of replacements; it is the same everywhere.
const REPLACEMENT_SEED: u64 = 0x7265_706c_6163_6564;

/// One sample to read.
struct Task {
    job: Arc<Job>,
    slot: usize,
    values: BytesMut,
}

/// Samples that wait for a thread, those of the oldest batch first.
#[derive(Default)]
pub(super) struct Queue {
    tasks: Mutex<Tasks>,
    changed: Condvar,
}

#[derive(Default)]
struct Tasks {
    waiting: VecDeque<Task>,
    is_closed: bool,
}

impl Queue {
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the samples of a batch, whose buffer has `num_bytes` per sample.
    pub(super) fn add(&self, job: &Arc<Job>, mut buffer: BytesMut, num_bytes: usize) {
        let tasks = (0..job.request.samples.len()).map(|slot| Task {
            job: Arc::clone(job),
            slot,
            values: buffer.split_to(num_bytes),
        });
        self.tasks().waiting.extend(tasks);
        self.changed.notify_all();
    }

    /// Removes the samples of a batch that no thread has begun.
    pub(super) fn cancel(&self, job: &Arc<Job>) {
        self.tasks()
            .waiting
            .retain(|task| !Arc::ptr_eq(&task.job, job));
    }

    pub(super) fn close(&self) {
        let mut tasks = self.tasks();
        tasks.is_closed = true;
        tasks.waiting.clear();
        self.changed.notify_all();
    }

    fn take(&self) -> Option<Task> {
        let mut tasks = self.tasks();
        loop {
            if tasks.is_closed {
                return None;
            }
            if let Some(task) = tasks.waiting.pop_front() {
                return Some(task);
            }
            tasks = self
                .changed
                .wait(tasks)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The loop of one thread.
pub(super) struct Reader {
    pub(super) queue: Arc<Queue>,
    pub(super) dataset: Arc<dyn Dataset>,
    pub(super) on_corrupt: OnCorrupt,
}

impl Reader {
    pub(super) fn run(self) {
        let mut scratch = Scratch::default();
        while let Some(Task {
            job,
            slot,
            mut values,
        }) = self.queue.take()
        {
            let sample = job.request.samples[slot];
            let epoch = job.request.epoch;
            // A decoder that panics must not leave the trainer waiting indefinitely.
            let read = AssertUnwindSafe(|| self.read(sample, epoch, &mut scratch, &mut values));
            let result = std::panic::catch_unwind(read).unwrap_or_else(|_| {
                scratch = Scratch::default();
                Err(DataError::ReaderPanicked { sample })
            });
            job.fill(
                slot,
                result.map(|(label, skipped)| Filled {
                    values,
                    label,
                    skipped,
                }),
            );
        }
    }

    /// Reads a sample or its replacement. The replacement depends only on the number
    /// of the corrupt sample.
    fn read(
        &self,
        sample: u64,
        epoch: u64,
        scratch: &mut Scratch,
        values: &mut [u8],
    ) -> Result<(i64, Vec<Skipped>), DataError> {
        let num_samples = self.dataset.num_samples();
        if sample >= num_samples {
            return Err(DataError::NoSuchSample {
                sample,
                num_samples,
            });
        }
        let first = match (
            self.dataset.read(sample, epoch, scratch, values),
            self.on_corrupt,
        ) {
            (Ok(label), _) => return Ok((label, Vec::new())),
            (Err(error), OnCorrupt::Skip) if error.is_one_record() => error,
            (Err(error), OnCorrupt::Skip | OnCorrupt::Fail) => return Err(error),
        };
        let mut random = Random::new(REPLACEMENT_SEED, 0, sample);
        for _ in 0..MAX_REPLACEMENTS {
            let replacement = random.below(num_samples);
            match self.dataset.read(replacement, epoch, scratch, values) {
                Ok(label) => {
                    let skipped = Skipped {
                        sample,
                        replacement,
                        reason: first,
                    };
                    return Ok((label, vec![skipped]));
                }
                Err(error) if error.is_one_record() => {}
                Err(error) => return Err(error),
            }
        }
        Err(DataError::TooManyCorrupt {
            num_tried: MAX_REPLACEMENTS + 1,
            first: Box::new(first),
        })
    }
}
