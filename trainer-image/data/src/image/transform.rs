//! Transforms an image of any size to the size of the model, with augmentation for training and
//! without it for evaluation. Both transforms follow those of torchvision with the same names, on
//! 8-bit pixels.

use roundhouse_contract::trainer::data::Augment;

use super::{Rectangle, Resizer, Size};
use crate::augment;
use crate::dataset::{Item, Scratch};
use crate::random::Random;

/// The form of the images in a batch.
#[derive(Clone, Debug)]
pub enum Output {
    /// 8-bit pixels `[H, W, C]`, to be normalized on the device.
    Pixels,
    /// Floats `[C, H, W]`, which are normalized here.
    Normalized {
        /// The float of each of the 256 values, by channel.
        table: Vec<[f32; 256]>,
    },
}

impl Output {
    /// Computes `(value / 255 - mean) / std` by channel.
    #[must_use]
    pub fn normalized(mean: &[f32], std: &[f32]) -> Self {
        let table = mean
            .iter()
            .zip(std)
            .map(|(mean, std)| std::array::from_fn(|value| (value as f32 / 255.0 - mean) / std));
        Self::Normalized {
            table: table.collect(),
        }
    }
}

/// A transform from an image of any size to the size of the model.
#[derive(Clone, Debug)]
pub struct Transform {
    /// Size of the model's images.
    pub size: Size,
    /// If nothing is augmented, the shorter edge is resized to this before the center is cut out.
    pub resize: u32,
    /// Augmentations; empty for evaluation.
    pub augment: Vec<Augment>,
    /// The form of the images in a batch.
    pub output: Output,
}

impl Transform {
    /// Returns the shape and type of a transformed sample.
    #[must_use]
    pub const fn item(&self) -> Item {
        let Size {
            width,
            height,
            num_channels,
        } = self.size;
        match self.output {
            Output::Pixels => Item::Pixels {
                height,
                width,
                num_channels,
            },
            Output::Normalized { .. } => Item::Normalized {
                height,
                width,
                num_channels,
            },
        }
    }

    /// Transforms `scratch.pixels`, an image of the given size, into a sample.
    ///
    /// # Errors
    /// Returns an error if the image has other channels than the model.
    pub fn apply(
        &self,
        size: Size,
        mut random: Random,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), String> {
        if size.num_channels != self.size.num_channels {
            let (found, needed) = (size.num_channels, self.size.num_channels);
            return Err(format!(
                "the image has {found} channels; the model needs {needed}"
            ));
        }
        let Scratch {
            record,
            pixels,
            resized,
            resizer,
        } = scratch;
        match &self.output {
            Output::Pixels => self.image(pixels, size, &mut random, (resizer, record), into),
            Output::Normalized { table } => {
                resized.resize(self.size.num_bytes(), 0);
                self.image(pixels, size, &mut random, (resizer, record), resized)?;
                normalize(resized, table, into);
                Ok(())
            }
        }
    }

    /// Returns the 8-bit image. `spare` is a buffer that may be overwritten.
    fn image(
        &self,
        pixels: &[u8],
        size: Size,
        random: &mut Random,
        (resizer, spare): (&mut Resizer, &mut Vec<u8>),
        into: &mut [u8],
    ) -> Result<(), String> {
        let has = |wanted| self.augment.contains(&wanted);
        if has(Augment::ResizedCrop) {
            let part = augment::resized_crop(size, random);
            resizer.resize(pixels, size, part, into, self.size)?;
        } else if has(Augment::Crop) {
            spare.resize(self.size.num_bytes(), 0);
            resizer.resize(pixels, size, whole(size), spare, self.size)?;
            augment::pad_and_crop(spare, self.size, random, into);
        } else {
            self.center(pixels, size, (resizer, spare), into)?;
        }
        if has(Augment::Flip) && random.coin() {
            augment::flip(into, self.size);
        }
        if has(Augment::RandAugment) {
            augment::rand_augment(into, self.size, random, spare);
        }
        Ok(())
    }

    /// Resizes the shorter edge, then cuts the center out.
    fn center(
        &self,
        pixels: &[u8],
        size: Size,
        (resizer, spare): (&mut Resizer, &mut Vec<u8>),
        into: &mut [u8],
    ) -> Result<(), String> {
        if size == self.size {
            into.copy_from_slice(pixels);
            return Ok(());
        }
        let shorter = u64::from(size.width.min(size.height));
        let edge = self.resize.max(self.size.width).max(self.size.height);
        let scaled = |edge_of: u32| {
            let scaled = u64::from(edge_of) * u64::from(edge) / shorter;
            u32::try_from(scaled).map_err(|_| "the image is too long and narrow".to_owned())
        };
        let between = Size {
            width: scaled(size.width)?,
            height: scaled(size.height)?,
            num_channels: size.num_channels,
        };
        if u64::from(between.width) * u64::from(between.height) > 100_000_000 {
            return Err("the image is too long and narrow".to_owned());
        }
        spare.resize(between.num_bytes(), 0);
        resizer.resize(pixels, size, whole(size), spare, between)?;
        // Round half to even, like Python's `round`.
        let half = |outer: u32, inner: u32| {
            let margin = outer - inner;
            margin / 2 + u32::from(margin % 4 == 3)
        };
        let left = half(between.width, self.size.width) as usize;
        let top = half(between.height, self.size.height) as usize;
        let num_channels = size.num_channels as usize;
        let row_in = between.width as usize * num_channels;
        let row_out = self.size.width as usize * num_channels;
        for (row, out) in into.chunks_exact_mut(row_out).enumerate() {
            let start = (top + row) * row_in + left * num_channels;
            out.copy_from_slice(&spare[start..start + row_out]);
        }
        Ok(())
    }
}

const fn whole(size: Size) -> Rectangle {
    Rectangle {
        left: 0,
        top: 0,
        width: size.width,
        height: size.height,
    }
}

/// Converts `[H, W, C]` bytes to `[C, H, W]` floats.
fn normalize(pixels: &[u8], table: &[[f32; 256]], into: &mut [u8]) {
    let num_channels = table.len();
    let plane = into.len() / num_channels;
    for (channel, (values, out)) in table.iter().zip(into.chunks_exact_mut(plane)).enumerate() {
        let source = pixels[channel..].iter().step_by(num_channels);
        for (value, place) in source.zip(out.as_chunks_mut::<4>().0) {
            *place = values[usize::from(*value)].to_ne_bytes();
        }
    }
}
