//! The interface of a data set: samples by number, all of the same size in memory.

use crate::error::DataError;
use crate::image::Resizer;
use crate::left_out::counted;

/// Type of the values of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Pixels from 0 to 255.
    U8,
    /// Normalized pixels as 32-bit floats in native byte order.
    F32,
    /// Tokens as 32-bit integers in native byte order.
    U32,
}

impl Element {
    /// Size of a value in bytes.
    #[must_use]
    pub const fn num_bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F32 | Self::U32 => 4,
        }
    }
}

/// Shape and type of a sample in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An image `[H, W, C]` of [`Element::U8`], the cheapest type to copy. The values must be
    /// divided by 255 and normalized on the device.
    Pixels {
        height: u32,
        width: u32,
        /// Number of channels C: 1 (gray) or 3 (red, green, blue).
        num_channels: u32,
    },
    /// An image `[C, H, W]` of [`Element::F32`], normalized.
    Normalized {
        height: u32,
        width: u32,
        num_channels: u32,
    },
    /// T + 1 tokens of [`Element::U32`]: the first T are the inputs, the last T the targets.
    Tokens { context: u32 },
}

impl Item {
    /// Returns the type of the values.
    #[must_use]
    pub const fn element(&self) -> Element {
        match self {
            Self::Pixels { .. } => Element::U8,
            Self::Normalized { .. } => Element::F32,
            Self::Tokens { .. } => Element::U32,
        }
    }

    /// Returns the shape of a sample, such as `[H, W, C]`.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        match *self {
            Self::Pixels {
                height,
                width,
                num_channels,
            } => vec![height as usize, width as usize, num_channels as usize],
            Self::Normalized {
                height,
                width,
                num_channels,
            } => vec![num_channels as usize, height as usize, width as usize],
            Self::Tokens { context } => vec![context as usize + 1],
        }
    }

    /// Size of a sample in bytes.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.shape().iter().product::<usize>() * self.element().num_bytes()
    }
}

/// Buffers that a thread reuses for every sample.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The record, as it is in the file.
    pub record: Vec<u8>,
    /// The decoded image, as 8-bit pixels.
    pub pixels: Vec<u8>,
    /// The image in the size that the model needs, before it is normalized.
    pub resized: Vec<u8>,
    /// Buffers for resizing images.
    pub resizer: Resizer,
}

/// A set of samples that are read by number.
///
/// # Guarantees of an implementation
/// The output of `read` depends only on the data, on how the data set was opened,
/// and on (sample, epoch).
pub trait Dataset: std::fmt::Debug + Send + Sync {
    /// Returns the number of samples N.
    fn num_samples(&self) -> u64;

    /// Describes the data for the log: its amount, and what was left out.
    fn describe(&self) -> String {
        counted(self.num_samples(), "sample", "samples")
    }

    /// Returns the shape and type of each sample.
    fn item(&self) -> &Item;

    /// Returns the number of classes of labelled data: labels are from 0 to below this number. For
    /// tokens, returns the size of the vocabulary if it is known.
    fn num_classes(&self) -> Option<u32>;

    /// Writes a sample, as it is in an epoch, into [`Item::num_bytes`] bytes, and returns its
    /// label (0 for tokens).
    ///
    /// # Errors
    /// Returns [`DataError::Corrupt`] if only this sample is affected.
    fn read(
        &self,
        sample: u64,
        epoch: u64,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<i64, DataError>;

    /// Returns the names of the data sets that this one mixes, in a fixed order; empty if it
    /// is not a mix.
    fn part_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the index in [`Self::part_names`] of the data set from which a sample comes.
    fn part_of(&self, sample: u64) -> Option<usize> {
        let _ = sample;
        None
    }

    /// Number of consecutive samples that are best read together, for the order in two levels; 1 if
    /// it does not matter.
    fn samples_per_block(&self) -> u64 {
        1
    }
}
