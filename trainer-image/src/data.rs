//! The data in memory, and batches of it as tensors.
//!
//! Images stay 8-bit until they are part of a batch; values 0 to 255 become 0 to 1.

use std::ops::Range;
use std::path::Path;

use roundhouse_contract::trainer::{Data, DataFormat};
use roundhouse_elastic::Permutation;
use tch::{Device, Kind, TchError, Tensor};

use crate::failure::Failure;

pub mod idx;

/// What a model has to know about the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Channels of an image.
    pub num_channels: i64,
    /// Rows of an image.
    pub height: i64,
    /// Columns of an image.
    pub width: i64,
    /// Classes: the labels are `0..num_classes`.
    pub num_classes: i64,
}

/// A training and a test split of the same shape.
#[derive(Debug)]
pub struct Dataset {
    /// To train on.
    pub train: Split,
    /// To evaluate on.
    pub test: Split,
    /// Of both.
    pub shape: Shape,
}

/// Labelled images.
#[derive(Debug)]
pub struct Split {
    /// `[N, C, H, W]`, 8 bit.
    images_bchw: Tensor,
    /// `[N]`, 64 bit.
    labels_b: Tensor,
    num_samples: u64,
}

/// Images `[B, C, H, W]` as 32-bit floats from 0 to 1, and labels `[B]`.
#[derive(Debug)]
pub struct Samples {
    /// The images.
    pub images_bchw: Tensor,
    /// Their labels.
    pub labels_b: Tensor,
}

/// Reads the data that a configuration names, below `data_dir` unless its path is absolute.
///
/// # Errors
/// [`Failure::Data`] names the file and what is wrong with it.
pub fn open(data: &Data, data_dir: &Path) -> Result<Dataset, Failure> {
    let Data {
        format,
        path,
        volume: _,
    } = data;
    let directory = path
        .as_ref()
        .map_or_else(|| data_dir.to_owned(), |path| data_dir.join(path));
    match format {
        DataFormat::Idx => idx::open(&directory),
    }
}

impl Split {
    /// Images `[N, C, H, W]` of 8 bit and labels `[N]`.
    ///
    /// # Errors
    /// The sizes do not fit together.
    pub fn new(images: &[u8], labels: &[u8], shape: &Shape) -> Result<Self, TchError> {
        let Shape {
            num_channels,
            height,
            width,
            num_classes: _,
        } = *shape;
        Ok(Self {
            images_bchw: Tensor::f_from_slice(images)?.f_reshape([
                -1,
                num_channels,
                height,
                width,
            ])?,
            labels_b: Tensor::f_from_slice(labels)?.f_to_kind(Kind::Int64)?,
            num_samples: labels.len() as u64,
        })
    }

    /// Moves the samples to a device.
    ///
    /// # Errors
    /// The device cannot hold them.
    pub fn move_to(&mut self, device: Device) -> Result<(), TchError> {
        self.images_bchw = self.images_bchw.f_to_device(device)?;
        self.labels_b = self.labels_b.f_to_device(device)?;
        Ok(())
    }

    /// Number of samples.
    #[must_use]
    pub const fn num_samples(&self) -> u64 {
        self.num_samples
    }

    /// The samples at some places of an epoch's order. No place is valid too.
    ///
    /// # Errors
    /// A place is outside the split.
    pub fn at_places(&self, places: Range<u64>, order: &Permutation) -> Result<Samples, TchError> {
        let samples: Vec<i64> = places
            .filter_map(|place| order.at(place))
            .map(u64::cast_signed)
            .collect();
        let index = Tensor::f_from_slice(&samples)?.f_to_device(self.images_bchw.device())?;
        Ok(Samples {
            images_bchw: scaled(&self.images_bchw.f_index_select(0, &index)?)?,
            labels_b: self.labels_b.f_index_select(0, &index)?,
        })
    }

    /// The samples of a range, in the order of the files.
    ///
    /// # Errors
    /// The range is not inside the split.
    pub fn range(&self, range: &Range<u64>) -> Result<Samples, TchError> {
        let start = range.start.cast_signed();
        let len = (range.end - range.start).cast_signed();
        Ok(Samples {
            images_bchw: scaled(&self.images_bchw.f_narrow(0, start, len)?)?,
            labels_b: self.labels_b.f_narrow(0, start, len)?,
        })
    }
}

fn scaled(images: &Tensor) -> Result<Tensor, TchError> {
    images.f_to_kind(Kind::Float)?.f_mul_scalar_(1.0 / 255.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split() -> Split {
        let shape = Shape {
            num_channels: 1,
            height: 1,
            width: 2,
            num_classes: 3,
        };
        Split::new(&[0, 255, 51, 0, 0, 102], &[2, 0, 1], &shape).unwrap()
    }

    fn floats(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.flatten(0, -1)).unwrap()
    }

    #[test]
    fn pixels_become_fractions_of_one() {
        let samples = split().range(&(1..3)).unwrap();
        assert_eq!(samples.images_bchw.size(), [2, 1, 1, 2]);
        for (found, expected) in floats(&samples.images_bchw)
            .iter()
            .zip([0.2, 0.0, 0.0, 0.4])
        {
            assert!((found - expected).abs() < 1e-6);
        }
        assert_eq!(Vec::<i64>::try_from(samples.labels_b).unwrap(), [0, 1]);
    }

    #[test]
    fn samples_come_in_the_order_of_the_epoch() {
        let split = split();
        let order = Permutation::new(3, 1, 0);
        let samples = split.at_places(0..3, &order).unwrap();
        let expected: Vec<i64> = (0..3)
            .map(|place| [2, 0, 1][usize::try_from(order.at(place).unwrap()).unwrap()])
            .collect();
        assert_eq!(Vec::<i64>::try_from(samples.labels_b).unwrap(), expected);
    }

    #[test]
    fn no_place_is_an_empty_batch() {
        let samples = split().at_places(2..2, &Permutation::new(3, 1, 0)).unwrap();
        assert_eq!(samples.images_bchw.size(), [0, 1, 1, 2]);
    }
}
