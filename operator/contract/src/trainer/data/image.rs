//! Size and augmentation of images.

use serde::{Deserialize, Serialize};

use crate::trainer::{ConfigInvalid, invalid};

/// Largest edge of a model's images in pixels.
const MAX_SIZE: u32 = 4096;

/// Random augmentations of images in training. Each is a function of the seed, the
/// epoch and the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Augment {
    /// A random part of 8 % to 100 % of the area, resized to `size`.
    ResizedCrop,
    /// A random part of the image, which is padded by an eighth of its size.
    Crop,
    /// A horizontal flip with a probability of one half.
    Flip,
    /// Two random operations out of twelve on colors and geometry.
    RandAugment,
}

/// Size and augmentation of images.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ImageOptions {
    /// Width and height of the model's images in pixels. Default: 224; for IDX
    /// files their own size.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 4096)))]
    pub size: Option<u32>,
    /// Length in pixels to which the shorter edge is resized before the center is cut out for
    /// evaluation. Default: `size` * 8 / 7.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 8192)))]
    pub resize: Option<u32>,
    /// Random augmentations in training, in a fixed order: crop, flip, randAugment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 4)))]
    pub augment: Vec<Augment>,
    /// Mean of each channel, from 0 to 1, which is subtracted. Default: none is subtracted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 3)))]
    pub mean: Vec<f64>,
    /// Standard deviation of each channel. Set it together with `mean`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 3)))]
    pub std: Vec<f64>,
    /// Number of classes. Default: the number in the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 2, max = 1_000_000)))]
    pub num_classes: Option<u32>,
    /// Parquet: name of the column with the images. Default: `image`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 256)))]
    pub column: Option<String>,
    /// Parquet: name of the column with the labels. Default: `label`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 256)))]
    pub label_column: Option<String>,
}

impl ImageOptions {
    pub(super) fn validate(&self) -> Result<(), ConfigInvalid> {
        if self
            .size
            .is_some_and(|size| !(1..=MAX_SIZE).contains(&size))
        {
            return invalid(
                "data.image.size",
                format!("must be between 1 and {MAX_SIZE}"),
            );
        }
        if let (Some(size), Some(resize)) = (self.size, self.resize)
            && !(size..=2 * MAX_SIZE).contains(&resize)
        {
            let most = 2 * MAX_SIZE;
            return invalid(
                "data.image.resize",
                format!("must be between size, {size}, and {most}"),
            );
        }
        let has = |wanted| self.augment.contains(&wanted);
        if has(Augment::Crop) && has(Augment::ResizedCrop) {
            return invalid(
                "data.image.augment",
                "give either crop or resizedCrop, not both",
            );
        }
        let repeated = |(at, augment)| self.augment[..at].contains(augment);
        if self.augment.iter().enumerate().any(repeated) {
            return invalid("data.image.augment", "name each augmentation once");
        }
        if self.mean.len() != self.std.len() || self.mean.len() == 2 {
            return invalid(
                "data.image.mean",
                "give mean and std together, with 1 or 3 numbers each",
            );
        }
        if !self.mean.iter().all(|mean| (0.0..=1.0).contains(mean)) {
            return invalid("data.image.mean", "must be between 0 and 1");
        }
        if !self.std.iter().all(|std| (1e-3..=10.0).contains(std)) {
            return invalid("data.image.std", "must be between 0.001 and 10");
        }
        if self
            .num_classes
            .is_some_and(|num| !(2..=1_000_000).contains(&num))
        {
            return invalid("data.image.numClasses", "must be between 2 and 1000000");
        }
        Ok(())
    }
}
