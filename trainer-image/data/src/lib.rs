//! Training data on the host: formats, decoding, augmentation, order and read-ahead. Nothing here needs libtorch.
//!
//! A [`Dataset`] gives any sample by its number; a [`Prefetcher`] decodes the samples of coming batches in
//! threads. What a sample becomes is a function of (data set, seed, epoch, number): not of threads, workers or
//! how far ahead the prefetcher reads.

pub mod augment;
pub mod batch;
pub mod cache;
pub mod dataset;
pub mod error;
pub mod files;
pub mod format;
pub mod image;
pub mod left_out;
#[cfg(feature = "text")]
mod lock;
pub mod mix;
pub mod open;
pub mod prefetch;
pub mod random;

pub use batch::HostBatch;
pub use dataset::{Dataset, Element, Item, Scratch};
pub use error::{DataError, Place};
pub use open::{Splits, open};
pub use prefetch::{OnCorrupt, Prefetcher, Request};
