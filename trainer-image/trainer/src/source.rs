//! The interface between the training loop and the data.

use std::ops::Range;
use std::path::PathBuf;

use roundhouse_data::DataError;
use roundhouse_elastic::Permutation;
use tch::TchError;

use crate::batch::Batch;

mod channels_last;

pub(crate) use channels_last::ChannelsLast;

/// Provides samples by their place in an epoch's order.
pub trait Source: std::fmt::Debug {
    /// Number of samples in an epoch.
    fn num_samples(&self) -> u64;

    /// Describes the data for the log of rank 0: its size, and what was left out.
    fn describe(&self) -> String {
        let num_samples = self.num_samples();
        let noun = if num_samples == 1 {
            "sample"
        } else {
            "samples"
        };
        format!("{num_samples} {noun}")
    }

    /// Announces the next fetches, so that the source can read ahead. Each item has the places of
    /// one batch and the order of its epoch. Later fetches may differ from the announcement.
    fn expect(&mut self, coming: &[(Range<u64>, Permutation)]) {
        let _ = coming;
    }

    /// From now on the source should return images `[B, C, H, W]` in the memory format channels
    /// last, if that saves a copy.
    fn lay_channels_last(&mut self) {}

    /// Number of tokens per sample, if samples are sequences of tokens.
    fn tokens_per_sample(&self) -> Option<u64> {
        None
    }

    /// Number of corrupt samples that were skipped so far. Each was replaced by another sample.
    fn num_skipped(&self) -> u64 {
        0
    }

    /// Number of samples that were fetched so far from each data set of a mix, with the name of the
    /// data set. Empty without a mix.
    fn num_by_part(&self) -> &[(String, u64)] {
        &[]
    }

    /// Fetches the samples at some places of an epoch's order, in that order. An empty range is
    /// valid and gives an empty batch.
    ///
    /// # Errors
    /// A record cannot be read, or has another shape than the other records.
    fn fetch(&mut self, places: Range<u64>, order: &Permutation) -> Result<Batch, SourceError>;
}

/// Why samples could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// An error of a built-in format.
    #[error(transparent)]
    Format(#[from] DataError),
    /// A data file is missing, truncated or corrupt.
    #[error("{}: {reason}", path.display())]
    Data {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with the file, with the offset or record if known.
        reason: String,
    },
    /// The batch could not be copied to the device.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
}
