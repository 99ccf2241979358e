//! A batch in host memory: contiguous, in a buffer that is reused.

use bytes::BytesMut;

use crate::dataset::{Dataset, Item, Scratch};
use crate::error::DataError;

/// The samples of a batch, one after the other.
#[derive(Debug)]
pub struct HostBatch {
    /// Shape and type of each sample.
    pub item: Item,
    /// The samples: `[B]` times [`Item::shape`], in the order of the request.
    pub values: BytesMut,
    /// Labels `[B]`; zeros for tokens.
    pub labels: Vec<i64>,
    /// Corrupt samples that were replaced by others.
    pub skipped: Vec<Skipped>,
}

/// A corrupt sample that another sample has replaced.
#[derive(Debug)]
pub struct Skipped {
    /// Number of the corrupt sample.
    pub sample: u64,
    /// Number of the sample that was read in its place.
    pub replacement: u64,
    /// Reason why the corrupt sample cannot be read.
    pub reason: DataError,
}

impl HostBatch {
    /// Returns the number of samples B.
    #[must_use]
    pub const fn num_samples(&self) -> usize {
        self.labels.len()
    }

    /// Reads samples of an epoch in this thread. The prefetcher does the same in several threads.
    ///
    /// # Errors
    /// Returns the error of the first sample that cannot be read.
    pub fn read(dataset: &dyn Dataset, samples: &[u64], epoch: u64) -> Result<Self, DataError> {
        let item = dataset.item().clone();
        let num_bytes = item.num_bytes();
        let mut values = BytesMut::zeroed(samples.len() * num_bytes);
        let mut labels = Vec::with_capacity(samples.len());
        let mut scratch = Scratch::default();
        for (sample, slot) in samples.iter().zip(values.chunks_exact_mut(num_bytes)) {
            labels.push(dataset.read(*sample, epoch, &mut scratch, slot)?);
        }
        Ok(Self {
            item,
            values,
            labels,
            skipped: Vec::new(),
        })
    }

    /// Returns the values as tokens; empty for images.
    #[must_use]
    pub fn tokens(&self) -> Vec<u32> {
        match self.item {
            Item::Tokens { .. } => words(&self.values).map(u32::from_ne_bytes).collect(),
            Item::Pixels { .. } | Item::Normalized { .. } => Vec::new(),
        }
    }

    /// Returns the values as 32-bit floats; empty for other types.
    #[must_use]
    pub fn floats(&self) -> Vec<f32> {
        match self.item {
            Item::Normalized { .. } => words(&self.values).map(f32::from_ne_bytes).collect(),
            Item::Pixels { .. } | Item::Tokens { .. } => Vec::new(),
        }
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.as_chunks::<4>().0.iter().copied()
}
