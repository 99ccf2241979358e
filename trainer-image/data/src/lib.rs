//! Training data on the host: formats, decoding, augmentation, order and read-ahead. This crate
//! does not need libtorch.
//!
//! A [`Dataset`] returns any sample by its number. A [`Prefetcher`] decodes the samples of coming
//! batches in threads. The content of a sample depends only on (data set, seed, epoch, number), not
//! on threads, workers or how far ahead the prefetcher reads.

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
