//! Labelled images of any format, and the data set that a transform makes of them.

use std::path::PathBuf;

use super::{Size, Transform, decode};
use crate::dataset::{Dataset, Item, Scratch};
use crate::error::{DataError, Place};
use crate::left_out::counted;
use crate::random::Random;

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// An encoded image, JPEG or PNG.
    Encoded { label: i64 },
    /// Uncompressed pixels `[H, W, C]`.
    Raw {
        label: i64,
        /// Width, height and channels of the image.
        size: Size,
    },
}

/// Labelled images by number, as they are in the files.
pub trait Records: std::fmt::Debug + Send + Sync {
    /// Returns the number of images.
    fn num_records(&self) -> u64;

    /// Returns the number of classes. Labels are from 0 to below this number.
    fn num_classes(&self) -> u32;

    /// Reads a record into a buffer.
    ///
    /// # Errors
    /// Returns [`DataError::Corrupt`] if only this record is affected.
    fn read(&self, number: u64, into: &mut Vec<u8>) -> Result<Record, DataError>;

    /// Further information for the user, in words that follow the numbers of images and classes:
    /// for example, files that were left out.
    fn notes(&self) -> String {
        String::new()
    }

    /// Returns the file and place of a record.
    fn locate(&self, number: u64) -> (PathBuf, Place);

    /// Number of consecutive records that are best read together.
    fn records_per_block(&self) -> u64 {
        1
    }
}

/// Images of one size, made from records.
#[derive(Debug)]
pub struct Images {
    records: Box<dyn Records>,
    transform: Transform,
    item: Item,
    num_classes: u32,
    seed: u64,
}

impl Images {
    /// Creates the data set of records. `num_classes` is the configured number of classes, or else
    /// that of the records. `seed` is the seed of augmentation.
    #[must_use]
    pub fn new(
        records: Box<dyn Records>,
        transform: Transform,
        num_classes: Option<u32>,
        seed: u64,
    ) -> Self {
        Self {
            item: transform.item(),
            num_classes: num_classes.unwrap_or_else(|| records.num_classes()),
            records,
            transform,
            seed,
        }
    }
}

impl Dataset for Images {
    fn num_samples(&self) -> u64 {
        self.records.num_records()
    }

    fn item(&self) -> &Item {
        &self.item
    }

    fn num_classes(&self) -> Option<u32> {
        Some(self.num_classes)
    }

    fn describe(&self) -> String {
        let images = counted(self.num_samples(), "image", "images");
        let classes = counted(self.num_classes.into(), "class", "classes");
        format!("{images} in {classes}{}", self.records.notes())
    }

    fn read(
        &self,
        sample: u64,
        epoch: u64,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<i64, DataError> {
        let corrupt = |reason: String| {
            let (path, place) = self.records.locate(sample);
            DataError::corrupt(&path, place, reason)
        };
        let record = self.records.read(sample, &mut scratch.record)?;
        let (label, size) = match record {
            Record::Raw { label, size } => {
                std::mem::swap(&mut scratch.record, &mut scratch.pixels);
                (label, size)
            }
            Record::Encoded { label } => {
                let size = decode::decode(&scratch.record, &mut scratch.pixels);
                (label, size.map_err(corrupt)?)
            }
        };
        if !(0..i64::from(self.num_classes)).contains(&label) {
            let highest = i64::from(self.num_classes) - 1;
            return Err(corrupt(format!(
                "label {label} is out of range; the classes are 0 to {highest}"
            )));
        }
        let random = Random::new(self.seed, epoch, sample);
        self.transform
            .apply(size, random, scratch, into)
            .map_err(corrupt)?;
        Ok(label)
    }

    fn samples_per_block(&self) -> u64 {
        self.records.records_per_block()
    }
}
