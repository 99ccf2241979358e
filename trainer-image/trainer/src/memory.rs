//! Small image data sets, kept in the memory of the device: a batch is one gather.

use std::ops::Range;

use roundhouse_data::{Dataset, HostBatch, Item};
use roundhouse_elastic::Permutation;
use tch::{Device, Kind, TchError, Tensor};

use crate::batch::Batch;
use crate::data::upload::upload;
use crate::source::{Source, SourceError};

/// Largest data set in bytes of pixels that a process keeps in memory.
pub const MOST_BYTES: u64 = 512 << 20;
/// Number of samples per read while loading.
const PIECE: u64 = 4_096;

/// A data set of pixels in memory. Pixels stay 8-bit until they are part of a batch.
#[derive(Debug)]
pub struct InMemory {
    /// `[N, C, H, W]`, 8 bit; in the memory order `[N, H, W, C]` if batches are channels last.
    images_nchw: Tensor,
    is_channels_last: bool,
    /// Classes `[N]` as 64-bit integers.
    labels_n: Tensor,
    num_samples: u64,
    /// The result of [`Source::describe`].
    words: String,
    /// Factor of a pixel per channel, `[1, C, 1, 1]`; the shift is added afterwards.
    scale: Tensor,
    shift: Tensor,
}

impl InMemory {
    /// Whether a data set can be kept in memory: it consists of pixels, is at most [`MOST_BYTES`]
    /// large, and has the same samples in every epoch, which a mix does not have.
    #[must_use]
    pub fn fits(dataset: &dyn Dataset) -> bool {
        let size = dataset.item().num_bytes() as u64 * dataset.num_samples();
        let is_mix = !dataset.part_names().is_empty();
        matches!(dataset.item(), Item::Pixels { .. }) && size <= MOST_BYTES && !is_mix
    }

    /// Reads all samples. A batch has the pixels `(value / 255 - mean) / std` per channel; without
    /// `normalize` it has `value / 255`.
    ///
    /// # Errors
    /// A sample cannot be read, or the device has too little memory.
    pub fn load(
        dataset: &dyn Dataset,
        normalize: Option<&(Vec<f64>, Vec<f64>)>,
        device: Device,
    ) -> Result<Self, SourceError> {
        let num_samples = dataset.num_samples();
        let (mut images, mut labels) = (Vec::new(), Vec::new());
        let mut start = 0;
        while start < num_samples {
            let end = num_samples.min(start + PIECE);
            let samples: Vec<u64> = (start..end).collect();
            let batch = HostBatch::read(dataset, &samples, 0)?;
            images.push(pixels_bchw(&batch)?);
            labels.extend_from_slice(&batch.labels);
            start = end;
        }
        let num_channels = images.first().map_or(1, |images| images.size()[1]);
        let images_nchw = Tensor::f_cat(&images, 0)?;
        let (scale, shift) = normalization(normalize, num_channels, device)?;
        Ok(Self {
            images_nchw: images_nchw.f_to_device(device)?,
            is_channels_last: false,
            labels_n: Tensor::f_from_slice(&labels)?.f_to_device(device)?,
            num_samples,
            words: dataset.describe(),
            scale,
            shift,
        })
    }
}

impl InMemory {
    fn selected(&self, index: &Tensor) -> Result<Tensor, TchError> {
        if !self.is_channels_last {
            return self.images_nchw.f_index_select(0, index);
        }
        // index_select returns a contiguous tensor, so select in the memory order.
        let pixels_nhwc = self.images_nchw.f_permute([0, 2, 3, 1])?;
        pixels_nhwc
            .f_index_select(0, index)?
            .f_permute([0, 3, 1, 2])
    }
}

impl Source for InMemory {
    fn num_samples(&self) -> u64 {
        self.num_samples
    }

    fn describe(&self) -> String {
        self.words.clone()
    }

    fn lay_channels_last(&mut self) {
        let pixels_nhwc = self.images_nchw.f_permute([0, 2, 3, 1]);
        let laid = pixels_nhwc.and_then(|pixels| pixels.f_contiguous()?.f_permute([0, 3, 1, 2]));
        // If memory is too small for both copies, the images stay as they are and each batch is
        // copied.
        if let Ok(images_nchw) = laid {
            (self.images_nchw, self.is_channels_last) = (images_nchw, true);
        }
    }

    fn fetch(&mut self, places: Range<u64>, order: &Permutation) -> Result<Batch, SourceError> {
        let samples: Vec<i64> = places
            .filter_map(|place| order.at(place))
            .map(u64::cast_signed)
            .collect();
        let device = self.images_nchw.device();
        let host = Tensor::f_from_slice(&samples)?;
        let index = upload(&host, device)?;
        let images = self.selected(&index)?;
        Ok(Batch {
            inputs: normalized(&images, &self.scale, &self.shift)?,
            targets: self.labels_n.f_index_select(0, &index)?,
            num_samples: samples.len() as u64,
        })
    }
}

/// Pixels `[B, C, H, W]` of a batch whose samples are `[H, W, C]`.
pub(crate) fn pixels_bchw(batch: &HostBatch) -> Result<Tensor, TchError> {
    let shape: Vec<i64> = std::iter::once(batch.num_samples())
        .chain(batch.item.shape())
        .map(|size| i64::try_from(size).unwrap_or(i64::MAX))
        .collect();
    let images_bhwc = Tensor::f_from_slice(&batch.values[..])?.f_reshape(&shape)?;
    images_bhwc.f_permute([0, 3, 1, 2])?.f_contiguous()
}

/// The factor of pixels and the shift added afterwards, per channel.
pub(crate) fn normalization(
    normalize: Option<&(Vec<f64>, Vec<f64>)>,
    num_channels: i64,
    device: Device,
) -> Result<(Tensor, Tensor), TchError> {
    const LARGEST: f64 = 255.0;
    let count = usize::try_from(num_channels).unwrap_or(0);
    let unchanged = (vec![0.0; count], vec![1.0; count]);
    let (mean, std) = normalize.unwrap_or(&unchanged);
    let by_channel = |values: Vec<f64>| {
        Tensor::f_from_slice(&values)?
            .f_to_kind(Kind::Float)?
            .f_reshape([1, num_channels, 1, 1])?
            .f_to_device(device)
    };
    let scale = std.iter().map(|std| 1.0 / (std * LARGEST)).collect();
    let shift = mean
        .iter()
        .zip(std)
        .map(|(mean, std)| -mean / std)
        .collect();
    Ok((by_channel(scale)?, by_channel(shift)?))
}

/// Pixels as normalized 32-bit floats.
pub(crate) fn normalized(
    images: &Tensor,
    scale: &Tensor,
    shift: &Tensor,
) -> Result<Tensor, TchError> {
    images.f_to_kind(Kind::Float)?.f_mul_(scale)?.f_add_(shift)
}

#[cfg(test)]
mod tests {
    use roundhouse_c10d::format;
    use roundhouse_data::{DataError, Scratch};

    use super::*;

    /// Ten samples of one black pixel; a mix if the list of names is not empty.
    #[derive(Debug)]
    struct Pixels(Vec<String>);

    impl Dataset for Pixels {
        fn num_samples(&self) -> u64 {
            10
        }

        fn item(&self) -> &Item {
            &Item::Pixels {
                height: 1,
                width: 1,
                num_channels: 1,
            }
        }

        fn num_classes(&self) -> Option<u32> {
            Some(1)
        }

        fn read(&self, _: u64, _: u64, _: &mut Scratch, into: &mut [u8]) -> Result<i64, DataError> {
            into.fill(0);
            Ok(0)
        }

        fn part_names(&self) -> Vec<String> {
            self.0.clone()
        }
    }

    #[test]
    fn channels_last_images_in_memory_keep_their_values() {
        let images_nchw =
            Tensor::arange(4 * 3 * 2 * 5, (Kind::Uint8, Device::Cpu)).view([4, 3, 2, 5]);
        let (scale, shift) = normalization(None, 3, Device::Cpu).unwrap();
        let mut source = InMemory {
            images_nchw,
            is_channels_last: false,
            labels_n: Tensor::from_slice(&[0_i64, 1, 2, 3]),
            num_samples: 4,
            words: String::new(),
            scale,
            shift,
        };
        let order = Permutation::new(4, 1, 0);
        let plain = source.fetch(1..4, &order).unwrap().inputs;
        assert!(plain.is_contiguous());
        source.lay_channels_last();
        let last = source.fetch(1..4, &order).unwrap().inputs;
        assert!(format::is_channels_last(&last).unwrap());
        assert_eq!(last, plain);
    }

    #[test]
    fn mix_is_not_kept_in_memory() {
        assert!(InMemory::fits(&Pixels(Vec::new())));
        assert!(!InMemory::fits(&Pixels(vec![
            "a".to_owned(),
            "b".to_owned()
        ])));
    }
}
