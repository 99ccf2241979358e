//! What every data set is: samples by number, all of the same size in memory.

use crate::error::DataError;
use crate::image::Resizer;
use crate::left_out::counted;

/// Type of the values of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Pixels from 0 to 255.
    U8,
    /// Normalized pixels, native byte order.
    F32,
    /// Tokens, native byte order.
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

/// What a sample is in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An image `[H, W, C]` of [`Element::U8`]: what it costs least to copy. The values are to be divided by
    /// 255 and normalized on the device.
    Pixels {
        /// H.
        height: u32,
        /// W.
        width: u32,
        /// C: 1 (gray) or 3 (red, green, blue).
        num_channels: u32,
    },
    /// An image `[C, H, W]` of [`Element::F32`], normalized.
    Normalized {
        /// H.
        height: u32,
        /// W.
        width: u32,
        /// C.
        num_channels: u32,
    },
    /// T + 1 tokens of [`Element::U32`]: the first T are the inputs, the last T the targets.
    Tokens {
        /// T.
        context: u32,
    },
}

impl Item {
    /// Type of the values.
    #[must_use]
    pub const fn element(&self) -> Element {
        match self {
            Self::Pixels { .. } => Element::U8,
            Self::Normalized { .. } => Element::F32,
            Self::Tokens { .. } => Element::U32,
        }
    }

    /// Sizes of a sample, such as `[H, W, C]`.
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

/// Buffers that a thread uses again for every sample.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The record as it is in the file.
    pub record: Vec<u8>,
    /// The decoded image.
    pub pixels: Vec<u8>,
    /// The image of the size that the model needs, before it is normalized.
    pub resized: Vec<u8>,
    /// Buffers of resizing.
    pub resizer: Resizer,
}

/// Samples by number.
///
/// # Guarantees the implementor gives
/// What `read` writes is a function of the data, of how the data set was opened, and of (sample, epoch).
pub trait Dataset: std::fmt::Debug + Send + Sync {
    /// Number of samples N.
    fn num_samples(&self) -> u64;

    /// What the data turned out to be, in words: how much of it there is, and what was left out.
    fn describe(&self) -> String {
        counted(self.num_samples(), "sample", "samples")
    }

    /// What each sample is in memory.
    fn item(&self) -> &Item;

    /// Classes, for labelled data: labels are from 0 to below this. For tokens: the vocabulary where it is known.
    fn num_classes(&self) -> Option<u32>;

    /// Writes a sample, as it is in an epoch, into [`Item::num_bytes`] bytes, and returns its label (0 for tokens).
    ///
    /// # Errors
    /// [`DataError::Corrupt`] if only this sample is affected.
    fn read(
        &self,
        sample: u64,
        epoch: u64,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<i64, DataError>;

    /// Names of the data sets that this one mixes, in a fixed order; empty for a data set that mixes none.
    fn part_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Index in [`Self::part_names`] of the data set that a sample comes from.
    fn part_of(&self, sample: u64) -> Option<usize> {
        let _ = sample;
        None
    }

    /// Consecutive samples that it is best to read together, for the order in two levels; 1: any.
    fn samples_per_block(&self) -> u64 {
        1
    }
}
