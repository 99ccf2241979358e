//! Decodes batches ahead in threads. The caller announces the batches that come; the threads work
//! on the oldest first.
//!
//! Memory is bounded. At most `num_ahead` batches are read beside the requested one, or as many
//! small ones as give each thread [`SAMPLES_PER_THREAD`] samples, plus one record and image per
//! thread. The content of a batch does not depend on the number of threads or on how far ahead they
//! are.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::BytesMut;
pub use roundhouse_contract::trainer::data::OnCorrupt;
use roundhouse_elastic::Permutation;

use crate::batch::HostBatch;
use crate::dataset::Dataset;
use crate::error::DataError;

mod job;
mod pool;
#[cfg(test)]
mod tests;

use job::Job;
use pool::{Queue, Reader};

/// Minimum number of samples that are read ahead per thread. A pass may have fewer samples than
/// there are threads, and a thread without a sample reads nothing.
pub const SAMPLES_PER_THREAD: usize = 2;

/// The samples of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Numbers of the samples.
    pub samples: Vec<u64>,
    /// The epoch, on which augmentation depends.
    pub epoch: u64,
}

impl Request {
    /// Returns a request for the samples at some places of an epoch's order.
    #[must_use]
    pub fn of(places: Range<u64>, order: &Permutation) -> Self {
        Self {
            samples: places.filter_map(|place| order.at(place)).collect(),
            epoch: order.epoch(),
        }
    }
}

/// Settings of a prefetcher. Only the policy for corrupt samples changes the content of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of threads; 0 counts as 1.
    pub num_threads: usize,
    /// Number of batches that are decoded ahead; more if they are small, see
    /// [`SAMPLES_PER_THREAD`]. With 0 none is read ahead.
    pub num_ahead: usize,
    /// Policy for a corrupt sample.
    pub on_corrupt: OnCorrupt,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            num_threads: std::thread::available_parallelism().map_or(1, usize::from),
            num_ahead: 2,
            on_corrupt: OnCorrupt::Fail,
        }
    }
}

/// The batches that come.
type Plan = Box<dyn Iterator<Item = Request> + Send>;

/// Reads batches of a data set ahead.
pub struct Prefetcher {
    dataset: Arc<dyn Dataset>,
    options: Options,
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
    coming: VecDeque<Arc<Job>>,
    plan: Option<Plan>,
    buffers: Vec<BytesMut>,
}

impl std::fmt::Debug for Prefetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prefetcher")
            .field("dataset", &self.dataset)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Prefetcher {
    /// Starts the threads of the prefetcher.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
    pub fn new(dataset: Arc<dyn Dataset>, options: Options) -> Result<Self, std::io::Error> {
        let queue = Arc::new(Queue::default());
        let mut prefetcher = Self {
            dataset,
            options,
            queue,
            threads: Vec::new(),
            coming: VecDeque::new(),
            plan: None,
            buffers: Vec::new(),
        };
        for number in 0..options.num_threads.max(1) {
            let reader = Reader {
                queue: Arc::clone(&prefetcher.queue),
                dataset: Arc::clone(&prefetcher.dataset),
                on_corrupt: options.on_corrupt,
            };
            let thread = std::thread::Builder::new()
                .name(format!("data-{number}"))
                .spawn(move || reader.run())?;
            prefetcher.threads.push(thread);
        }
        Ok(prefetcher)
    }

    /// Returns the data set.
    #[must_use]
    pub fn dataset(&self) -> &Arc<dyn Dataset> {
        &self.dataset
    }

    /// Announces the batches that come and starts to read them. Batches that were read
    /// ahead and are not at the beginning of the new plan are dropped, because a new
    /// generation has other shards.
    pub fn expect(&mut self, plan: impl Iterator<Item = Request> + Send + 'static) {
        let mut plan: Plan = Box::new(plan);
        let mut old = std::mem::take(&mut self.coming);
        while self.reads_more_ahead() {
            let Some(request) = plan.next() else {
                break;
            };
            let kept = old.iter().position(|job| job.request == request);
            let job = kept.and_then(|at| old.remove(at));
            let job = job.unwrap_or_else(|| self.start(request));
            self.coming.push_back(job);
        }
        for job in old {
            self.queue.cancel(&job);
        }
        self.plan = Some(plan);
    }

    /// Returns a batch, usually the next one of the plan. Any other batch is read at once, and a
    /// plan that does not contain it among the batches read ahead is dropped.
    ///
    /// # Errors
    /// Returns the error of the first sample of the batch that cannot be read.
    pub fn fetch(&mut self, request: &Request) -> Result<HostBatch, DataError> {
        let at = self.coming.iter().position(|job| job.request == *request);
        let job = if let Some(at) = at {
            for passed in self.coming.drain(..at) {
                self.queue.cancel(&passed);
            }
            self.coming.pop_front()
        } else {
            self.forget();
            None
        };
        let job = job.unwrap_or_else(|| self.start(request.clone()));
        self.read_ahead();
        job.wait()
    }

    /// Drops the plan and all batches that were read ahead.
    pub fn forget(&mut self) {
        self.plan = None;
        for job in std::mem::take(&mut self.coming) {
            self.queue.cancel(&job);
        }
    }

    /// Returns the buffer of a batch for reuse.
    pub fn recycle(&mut self, batch: HostBatch) {
        if self.buffers.len() <= self.options.num_ahead.max(self.coming.len()) {
            self.buffers.push(batch.values);
        }
    }

    fn read_ahead(&mut self) {
        while self.reads_more_ahead() {
            let Some(request) = self.plan.as_mut().and_then(Iterator::next) else {
                return;
            };
            let job = self.start(request);
            self.coming.push_back(job);
        }
    }

    /// Whether to read another batch ahead.
    fn reads_more_ahead(&self) -> bool {
        let Options {
            num_threads,
            num_ahead,
            on_corrupt: _,
        } = self.options;
        let sizes = self.coming.iter().map(|job| job.request.samples.len());
        let fewest = SAMPLES_PER_THREAD * num_threads.max(1);
        self.coming.len() < num_ahead || num_ahead > 0 && sizes.sum::<usize>() < fewest
    }

    fn start(&mut self, request: Request) -> Arc<Job> {
        let item = self.dataset.item().clone();
        let num_bytes = item.num_bytes();
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.resize(num_bytes * request.samples.len(), 0);
        let job = Arc::new(Job::new(request, item));
        self.queue.add(&job, buffer, num_bytes);
        job
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.queue.close();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
