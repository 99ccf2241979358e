//! The seam between the training loop and the data.

use std::ops::Range;
use std::path::PathBuf;

use roundhouse_data::DataError;
use roundhouse_elastic::Permutation;
use tch::TchError;

use crate::batch::Batch;

mod channels_last;

pub(crate) use channels_last::ChannelsLast;

/// Samples by their place in an epoch's order.
pub trait Source: std::fmt::Debug {
    /// Number of samples.
    fn num_samples(&self) -> u64;

    /// What the data turned out to be, in words for the log of rank 0: how much of it there is, and what was left out.
    fn describe(&self) -> String {
        let num_samples = self.num_samples();
        let noun = if num_samples == 1 {
            "sample"
        } else {
            "samples"
        };
        format!("{num_samples} {noun}")
    }

    /// Which samples will be fetched next, each by the places of one batch and the order of its epoch, so that they can
    /// be read ahead. It may turn out otherwise.
    fn expect(&mut self, coming: &[(Range<u64>, Permutation)]) {
        let _ = coming;
    }

    /// Images `[B, C, H, W]` come with their channels closest in memory from now on, where that saves a copy.
    fn lay_channels_last(&mut self) {}

    /// Tokens in a sample, for samples that are sequences of them.
    fn tokens_per_sample(&self) -> Option<u64> {
        None
    }

    /// Corrupt samples that were skipped so far, each replaced by another sample.
    fn num_skipped(&self) -> u64 {
        0
    }

    /// Samples that were fetched so far from each data set of a mix, by the name of the data set. Empty without a mix.
    fn num_by_part(&self) -> &[(String, u64)] {
        &[]
    }

    /// The samples at some places of an epoch's order, in that order. No place is valid, too: an empty batch.
    ///
    /// # Errors
    /// A record cannot be read, or does not fit the others.
    fn fetch(&mut self, places: Range<u64>, order: &Permutation) -> Result<Batch, SourceError>;
}

/// Why samples could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// What the built-in formats say.
    #[error(transparent)]
    Format(#[from] DataError),
    /// A file is missing, truncated or corrupt.
    #[error("{}: {reason}", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, with the offset or record where that is known.
        reason: String,
    },
    /// The batch could not be put on the device.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
}
