use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::dataset::{Item, Scratch};
use crate::error::Place;
use crate::random::Random;

mod errors;

/// A sample consists of 8 bytes drawn from (sample, epoch). Samples divisible by `corrupt` are
/// corrupt, and sample 666 panics.
#[derive(Debug)]
struct Numbers {
    item: Item,
    num_samples: u64,
    corrupt: Option<u64>,
    num_reads: AtomicU64,
}

fn numbers(num_samples: u64, corrupt: Option<u64>) -> Arc<Numbers> {
    Arc::new(Numbers {
        item: Item::Pixels {
            height: 1,
            width: 8,
            num_channels: 1,
        },
        num_samples,
        corrupt,
        num_reads: AtomicU64::new(0),
    })
}

impl Dataset for Numbers {
    fn num_samples(&self) -> u64 {
        self.num_samples
    }

    fn item(&self) -> &Item {
        &self.item
    }

    fn num_classes(&self) -> Option<u32> {
        None
    }

    fn read(
        &self,
        sample: u64,
        epoch: u64,
        _: &mut Scratch,
        into: &mut [u8],
    ) -> Result<i64, DataError> {
        self.num_reads.fetch_add(1, Ordering::Relaxed);
        assert_ne!(sample, 666, "a defect");
        if self
            .corrupt
            .is_some_and(|corrupt| sample.is_multiple_of(corrupt))
        {
            return Err(DataError::corrupt(
                Path::new("numbers"),
                Place::Record(sample),
                "is corrupt",
            ));
        }
        into.copy_from_slice(&Random::new(1, epoch, sample).bits().to_le_bytes());
        Ok(sample.cast_signed())
    }
}

fn options(num_threads: usize, num_ahead: usize, on_corrupt: OnCorrupt) -> Options {
    Options {
        num_threads,
        num_ahead,
        on_corrupt,
    }
}

/// The batches of two epochs, with 7 samples each.
fn plan(num_samples: u64) -> Vec<Request> {
    let starts = (0..num_samples).step_by(7);
    let epochs = (0..2).map(move |epoch| Permutation::new(num_samples, 3, epoch));
    epochs
        .flat_map(|order| {
            starts
                .clone()
                .map(move |start| Request::of(start..(start + 7).min(num_samples), &order))
        })
        .collect()
}

fn fetch_all(prefetcher: &mut Prefetcher, plan: &[Request]) -> Vec<(Vec<u8>, Vec<i64>, Vec<u64>)> {
    let mut all = Vec::new();
    for request in plan {
        let batch = prefetcher.fetch(request).unwrap();
        let replaced = batch
            .skipped
            .iter()
            .map(|skipped| skipped.replacement)
            .collect();
        all.push((batch.values.to_vec(), batch.labels.clone(), replaced));
        prefetcher.recycle(batch);
    }
    all
}

#[test]
fn batches_do_not_depend_on_threads_or_lookahead() {
    let plan = plan(50);
    let mut found = Vec::new();
    for (num_threads, num_ahead) in [(1, 0), (1, 3), (4, 1), (7, 16)] {
        let dataset = numbers(50, Some(9));
        let mut prefetcher =
            Prefetcher::new(dataset, options(num_threads, num_ahead, OnCorrupt::Skip)).unwrap();
        prefetcher.expect(plan.clone().into_iter());
        found.push(fetch_all(&mut prefetcher, &plan));
    }
    assert!(found.windows(2).all(|pair| pair[0] == pair[1]));
    let num_replaced: usize = found[0].iter().map(|(_, _, replaced)| replaced.len()).sum();
    assert_eq!(
        num_replaced, 12,
        "0, 9, 18, 27, 36, 45 in each of two epochs"
    );
}

#[test]
fn batch_is_the_same_without_threads() {
    let plan = plan(20);
    let dataset = numbers(20, None);
    let mut prefetcher = Prefetcher::new(dataset.clone(), options(3, 2, OnCorrupt::Fail)).unwrap();
    for request in &plan {
        let alone = HostBatch::read(dataset.as_ref(), &request.samples, request.epoch).unwrap();
        let batch = prefetcher.fetch(request).unwrap();
        assert_eq!((batch.values, batch.labels), (alone.values, alone.labels));
    }
}

#[test]
fn followed_plan_reads_each_sample_once() {
    let plan = plan(50);
    let dataset = numbers(50, None);
    let mut prefetcher = Prefetcher::new(dataset.clone(), options(4, 3, OnCorrupt::Fail)).unwrap();
    prefetcher.expect(plan.clone().into_iter());
    fetch_all(&mut prefetcher, &plan);
    assert_eq!(dataset.num_reads.load(Ordering::Relaxed), 100);
}

#[test]
fn new_plan_keeps_the_batches_of_the_old_one() {
    let plan = plan(50);
    let dataset = numbers(50, None);
    let mut prefetcher = Prefetcher::new(dataset.clone(), options(2, 4, OnCorrupt::Fail)).unwrap();
    prefetcher.expect(plan.clone().into_iter());
    let rest = plan[2..].to_vec();
    prefetcher.expect(rest.clone().into_iter());
    let batches = fetch_all(&mut prefetcher, &rest);
    assert_eq!(batches.len(), rest.len());
    let needed: usize = rest.iter().map(|request| request.samples.len()).sum();
    let num_dropped = dataset.num_reads.load(Ordering::Relaxed) - needed as u64;
    assert!(
        num_dropped <= 14,
        "only the two dropped batches may have been read in vain"
    );
}

#[test]
fn lookahead_is_limited() {
    let plan = plan(700);
    let dataset = numbers(665, None);
    let mut prefetcher = Prefetcher::new(dataset.clone(), options(4, 2, OnCorrupt::Fail)).unwrap();
    prefetcher.expect(plan.clone().into_iter());
    prefetcher
        .fetch(&Request {
            samples: plan[0].samples.iter().map(|sample| sample % 665).collect(),
            epoch: 0,
        })
        .unwrap();
    drop(prefetcher);
    assert!(dataset.num_reads.load(Ordering::Relaxed) <= 21);
}

/// A data set whose samples become available when a given number of threads read at once.
#[derive(Debug)]
struct Together {
    item: Item,
    num_threads: usize,
    reading: std::sync::Mutex<usize>,
    changed: std::sync::Condvar,
}

impl Dataset for Together {
    fn num_samples(&self) -> u64 {
        1_000
    }

    fn item(&self) -> &Item {
        &self.item
    }

    fn num_classes(&self) -> Option<u32> {
        None
    }

    fn read(&self, sample: u64, _: u64, _: &mut Scratch, _: &mut [u8]) -> Result<i64, DataError> {
        let mut reading = self.reading.lock().unwrap();
        *reading += 1;
        self.changed.notify_all();
        let deadline = std::time::Duration::from_secs(20);
        let few = |reading: &mut usize| *reading < self.num_threads;
        let waited = self.changed.wait_timeout_while(reading, deadline, few);
        assert!(!waited.unwrap().1.timed_out(), "threads have no sample");
        Ok(sample.cast_signed())
    }
}

#[test]
fn every_thread_has_a_sample_even_with_small_passes() {
    let dataset = Arc::new(Together {
        item: numbers(1, None).item.clone(),
        num_threads: 16,
        reading: std::sync::Mutex::default(),
        changed: std::sync::Condvar::new(),
    });
    let mut prefetcher = Prefetcher::new(dataset, options(16, 2, OnCorrupt::Fail)).unwrap();
    let passes: Vec<Request> = (0..40)
        .map(|pass| Request {
            samples: vec![2 * pass, 2 * pass + 1],
            epoch: 0,
        })
        .collect();
    prefetcher.expect(passes.clone().into_iter());
    for pass in &passes {
        let batch = prefetcher.fetch(pass).unwrap();
        assert_eq!(
            batch.labels,
            [0, 1].map(|at| pass.samples[at].cast_signed())
        );
        prefetcher.recycle(batch);
    }
}

#[test]
fn batch_outside_the_plan_is_read() {
    let dataset = numbers(50, None);
    let mut prefetcher = Prefetcher::new(dataset, options(2, 2, OnCorrupt::Fail)).unwrap();
    prefetcher.expect(plan(50).into_iter());
    let other = Request {
        samples: vec![4, 4, 1],
        epoch: 9,
    };
    assert_eq!(prefetcher.fetch(&other).unwrap().labels, [4, 4, 1]);
    let nothing = Request {
        samples: Vec::new(),
        epoch: 0,
    };
    assert_eq!(prefetcher.fetch(&nothing).unwrap().num_samples(), 0);
}
