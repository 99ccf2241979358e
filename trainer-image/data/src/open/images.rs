//! Opens data sets of images.

use std::path::Path;
use std::sync::Arc;

use roundhouse_contract::trainer::data::{DataFormat, ImageOptions};

use super::{Opener, Pixels, Splits};
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::format::folder::Folder;
use crate::format::idx;
#[cfg(feature = "parquet")]
use crate::format::parquet::Parquet;
use crate::format::shards::Shards;
use crate::format::tfrecord::TfRecord;
use crate::format::webdataset::WebDataset;
use crate::image::{Images, Output, Records, Size, Transform};

/// Default width and height of images.
const SIZE: u32 = 224;

/// Properties of the training split that apply to the validation split.
#[derive(Default)]
pub(super) struct Known {
    pub(super) classes: Option<Vec<String>>,
    pub(super) num_classes: Option<u32>,
}

impl Opener<'_> {
    /// Opens the splits of IDX files, whose names are fixed.
    pub(super) fn idx(&self) -> Result<Splits, DataError> {
        let (train, test) = idx::open(&self.root)?;
        let options = self.data.image.clone().unwrap_or_default();
        let own = train.size();
        let edge = |own| options.size.unwrap_or(own);
        let size = Size {
            width: edge(own.width),
            height: edge(own.height),
            num_channels: 1,
        };
        let num_classes = options.num_classes;
        let images = |records: idx::Idx, is_train| {
            let transform = self.transform(&options, size, is_train)?;
            let images = Images::new(Box::new(records), transform, num_classes, self.seed);
            Ok::<Arc<dyn Dataset>, DataError>(Arc::new(images))
        };
        Ok(Splits {
            train: images(train, true)?,
            validation: Some(images(test, false)?),
            normalize: self.normalize(),
            blocks: None,
            shares: Vec::new(),
        })
    }

    /// Opens the images of a split in another format.
    pub(super) fn images(
        &self,
        path: &Path,
        is_train: bool,
        known: &mut Known,
    ) -> Result<Arc<dyn Dataset>, DataError> {
        let options = self.data.image.clone().unwrap_or_default();
        let edge = options.size.unwrap_or(SIZE);
        let size = Size {
            width: edge,
            height: edge,
            num_channels: 3,
        };
        let transform = self.transform(&options, size, is_train)?;
        let records = self.records(path, &options, known)?;
        // A validation split may lack the highest class, so the training split's number applies.
        let num_classes = options.num_classes.or(known.num_classes);
        Ok(Arc::new(Images::new(
            records,
            transform,
            num_classes,
            self.seed,
        )))
    }

    fn records(
        &self,
        path: &Path,
        options: &ImageOptions,
        known: &mut Known,
    ) -> Result<Box<dyn Records>, DataError> {
        Ok(match self.data.format {
            DataFormat::ImageFolder => {
                let folder = Folder::open(path, known.classes.as_deref(), &self.cache)?;
                known
                    .classes
                    .get_or_insert_with(|| folder.classes().to_vec());
                Box::new(folder)
            }
            DataFormat::WebDataset => Box::new(Shards::open(WebDataset, path, &self.cache)?),
            DataFormat::TfRecord => Box::new(Shards::open(TfRecord, path, &self.cache)?),
            #[cfg(feature = "parquet")]
            DataFormat::Parquet => {
                let image = options.column.as_deref().unwrap_or("image");
                let label = options.label_column.as_deref().unwrap_or("label");
                Box::new(Parquet::open(path, image, label, &self.cache)?)
            }
            #[cfg(not(feature = "parquet"))]
            DataFormat::Parquet => {
                let _ = options;
                return Err(DataError::not_built_in("Parquet"));
            }
            // IDX files have fixed names: see `idx`.
            DataFormat::Idx | DataFormat::Tokens | DataFormat::Text | DataFormat::Custom => {
                let reason = format!("{:?} has no splits of images", self.data.format);
                return Err(DataError::config("data.format", reason));
            }
        })
    }

    fn transform(
        &self,
        options: &ImageOptions,
        size: Size,
        is_train: bool,
    ) -> Result<Transform, DataError> {
        let edge = size.width.max(size.height);
        if let (Some(resize), None) = (options.resize, options.size)
            && resize < edge
        {
            return Err(DataError::config(
                "data.image.resize",
                format!("must be at least {edge}"),
            ));
        }
        let num_channels = size.num_channels as usize;
        if ![0, num_channels].contains(&options.mean.len()) {
            let reason = format!("the images have {num_channels} channels; give as many numbers");
            return Err(DataError::config("data.image.mean", reason));
        }
        let single = |values: &[f64], default: f32| -> Vec<f32> {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a mean needs no more digits"
            )]
            let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            if values.is_empty() {
                vec![default; num_channels]
            } else {
                values
            }
        };
        Ok(Transform {
            size,
            // The ratio is that of 256 to 224.
            resize: options.resize.unwrap_or(edge * 8 / 7),
            augment: if is_train {
                options.augment.clone()
            } else {
                Vec::new()
            },
            output: match self.pixels {
                Pixels::Bytes => Output::Pixels,
                Pixels::Normalized => {
                    Output::normalized(&single(&options.mean, 0.0), &single(&options.std, 1.0))
                }
            },
        })
    }

    /// Returns the mean and standard deviation with which byte pixels are normalized later.
    pub(super) fn normalize(&self) -> Option<(Vec<f64>, Vec<f64>)> {
        let options = self.data.image.as_ref()?;
        let is_left = self.pixels == Pixels::Bytes && !options.mean.is_empty();
        is_left.then(|| (options.mean.clone(), options.std.clone()))
    }
}
