//! Parquet files with a column of encoded images and one of labels, or with a column of token
//! lists. Row groups are read as a whole, and the newest ones are kept within a memory limit. With
//! the two-level order each row group is read once or twice per epoch.

use std::fs::File;
use std::path::{Path, PathBuf};

use ::parquet::basic::Type;
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::error::{DataError, Place};
use crate::image::{Record, Records};

mod columns;
mod groups;
mod pages;
mod source;
#[cfg(test)]
mod tests;
pub mod tokens;

use columns::{bytes_of, caught, find, numbers_of};
use groups::Groups;
use pages::TooLarge;
use source::Source;
pub use tokens::TokenLists;

/// Memory limit of the cached row groups of a data set, in bytes. Each thread that reads a row
/// group needs its memory in addition.
const MAX_KEPT_BYTES: usize = 512 << 20;

/// Cached metadata of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Summary {
    /// Number of rows of each row group.
    num_rows: Vec<u64>,
    highest_label: i64,
}

/// Images and labels of one row group.
#[derive(Debug)]
struct Group {
    images: Vec<Option<::parquet::data_type::ByteArray>>,
    labels: Vec<Option<i64>>,
}

/// The images of all files.
#[derive(Debug)]
pub struct Parquet {
    paths: Vec<PathBuf>,
    image: String,
    label: String,
    /// File, row group and number of the first row of each row group.
    groups: Vec<(usize, usize, u64)>,
    num_rows: u64,
    num_classes: u32,
    notes: String,
    kept: Groups<usize, Group>,
}

fn reader(path: &Path) -> Result<SerializedFileReader<Source>, DataError> {
    let file = File::open(path).map_err(DataError::io(path))?;
    caught(|| SerializedFileReader::new(Source(file))).map_err(|error| refused(path, &error))
}

fn refused(path: &Path, error: &ParquetError) -> DataError {
    if let ParquetError::External(cause) = error
        && let Some(too_large) = cause.downcast_ref::<TooLarge>()
    {
        return DataError::invalid(path, too_large.to_string());
    }
    DataError::invalid(
        path,
        format!("the Parquet file is truncated or corrupt: {error}"),
    )
}

impl Parquet {
    /// Opens a file or the files of a directory. The image column contains bytes or, as Hugging
    /// Face writes it, a struct with a field `bytes`.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or lacks such columns, or if there is no row.
    pub fn open(path: &Path, image: &str, label: &str, cache: &Cache) -> Result<Self, DataError> {
        let found = crate::files::find(path, &[".parquet"])?;
        let notes = found.words();
        let paths = found.paths;
        let (mut groups, mut start, mut highest) = (Vec::new(), 0, 0);
        for (number, file) in paths.iter().enumerate() {
            let names = format!("{image}\n{label}");
            let summary = cache.get(file, "parquet-index", names.as_bytes(), || {
                summary(file, image, label)
            })?;
            for (group, num_rows) in summary.num_rows.iter().enumerate() {
                groups.push((number, group, start));
                start += num_rows;
            }
            highest = highest.max(summary.highest_label);
        }
        if start == 0 {
            return Err(DataError::invalid(path, "holds no row"));
        }
        let num_classes = u32::try_from(highest + 1)
            .map_err(|_| DataError::invalid(path, format!("label {highest} is too high")))?;
        Ok(Self {
            paths,
            image: image.to_owned(),
            label: label.to_owned(),
            groups,
            num_rows: start,
            num_classes,
            notes,
            kept: Groups::new(MAX_KEPT_BYTES),
        })
    }

    /// Returns the row group of an image number, and the row in it.
    fn find(&self, number: u64) -> (usize, u64) {
        let at = self
            .groups
            .partition_point(|(_, _, start)| *start <= number)
            .saturating_sub(1);
        (
            at,
            number - self.groups.get(at).map_or(0, |(_, _, start)| *start),
        )
    }

    fn load(&self, at: usize) -> Result<(Group, usize), DataError> {
        let (file, group, _) = self.groups[at];
        let path = &self.paths[file];
        let reader = reader(path)?;
        let refuse = |error| refused(path, &error);
        let rows = reader.get_row_group(group).map_err(refuse)?;
        let (image, label) = columns_of(path, &reader, &self.image, &self.label)?;
        let images = bytes_of(rows.as_ref(), image).map_err(refuse)?;
        let labels = numbers_of(rows.as_ref(), label).map_err(refuse)?;
        let size = images
            .iter()
            .flatten()
            .map(::parquet::data_type::ByteArray::len)
            .sum();
        Ok((Group { images, labels }, size))
    }
}

/// Returns the numbers of the columns of images and labels.
fn columns_of(
    path: &Path,
    reader: &SerializedFileReader<Source>,
    image: &str,
    label: &str,
) -> Result<(usize, usize), DataError> {
    let schema = reader.metadata().file_metadata().schema_descr();
    let bytes = [Type::BYTE_ARRAY];
    let image =
        find(schema, &format!("{image}.bytes"), &bytes).or_else(|_| find(schema, image, &bytes));
    let label = find(schema, label, &[Type::INT32, Type::INT64]);
    let name = |reason| DataError::invalid(path, reason);
    Ok((image.map_err(name)?, label.map_err(name)?))
}

fn summary(path: &Path, image: &str, label: &str) -> Result<Summary, DataError> {
    let reader = reader(path)?;
    let (_, label) = columns_of(path, &reader, image, label)?;
    let mut summary = Summary {
        num_rows: Vec::new(),
        highest_label: 0,
    };
    for group in 0..reader.num_row_groups() {
        let refuse = |error| refused(path, &error);
        let rows = reader.get_row_group(group).map_err(refuse)?;
        let labels = numbers_of(rows.as_ref(), label).map_err(refuse)?;
        summary.num_rows.push(labels.len() as u64);
        let highest = labels.into_iter().flatten().max().unwrap_or(0);
        summary.highest_label = summary.highest_label.max(highest);
    }
    Ok(summary)
}

impl Records for Parquet {
    fn num_records(&self) -> u64 {
        self.num_rows
    }

    fn num_classes(&self) -> u32 {
        self.num_classes
    }

    fn read(&self, number: u64, into: &mut Vec<u8>) -> Result<Record, DataError> {
        let (at, row) = self.find(number);
        let group = self.kept.get(at, || self.load(at))?;
        let row = usize::try_from(row).unwrap_or(usize::MAX);
        let corrupt = |reason: &str| {
            let (path, place) = self.locate(number);
            DataError::corrupt(&path, place, reason)
        };
        let image = group.images.get(row).and_then(Option::as_ref);
        let label = group.labels.get(row).copied().flatten();
        let image = image.ok_or_else(|| corrupt("the row has no image"))?;
        let label = label.ok_or_else(|| corrupt("the row has no label"))?;
        into.clear();
        into.extend_from_slice(image.data());
        Ok(Record::Encoded { label })
    }

    fn notes(&self) -> String {
        self.notes.clone()
    }

    fn locate(&self, number: u64) -> (PathBuf, Place) {
        let (at, row) = self.find(number);
        let Some((file, _, start)) = self.groups.get(at) else {
            return (PathBuf::new(), Place::File);
        };
        let first = self.groups.iter().find(|(other, _, _)| other == file);
        let first = first.map_or(0, |(_, _, start)| *start);
        (
            self.paths[*file].clone(),
            Place::Record(start + row - first),
        )
    }

    fn records_per_block(&self) -> u64 {
        self.num_rows.div_ceil(self.groups.len().max(1) as u64)
    }
}
