//! Records that are stored one after the other in large files, with an index per file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::error::{DataError, Place};
use crate::files::Files;
use crate::image::{Record, Records};
use crate::left_out::LeftOut;

/// Maximum size of a record in bytes. A larger length is corrupt.
pub(super) const MAX_RECORD_BYTES: u64 = 1 << 30;

/// Label of a record without a label.
pub(super) const NO_LABEL: i64 = -1;

/// The places of the records in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spans {
    offsets: Vec<u64>,
    lengths: Vec<u32>,
    labels: Vec<i64>,
    /// Samples without an image, which are left out.
    pub(super) left_out: LeftOut,
}

impl Spans {
    pub(super) fn push(&mut self, offset: u64, length: u32, label: i64) {
        self.offsets.push(offset);
        self.lengths.push(length);
        self.labels.push(label);
    }

    fn is_sane(&self) -> bool {
        self.offsets.len() == self.lengths.len() && self.lengths.len() == self.labels.len()
    }
}

/// Reader of one shard format.
pub trait Shard: std::fmt::Debug + Send + Sync {
    /// Name of the format, which is part of the index file's name.
    fn kind(&self) -> &'static str;

    /// Endings of the format's file names.
    fn endings(&self) -> &'static [&'static str];

    /// Finds the records of a file.
    ///
    /// # Errors
    /// Returns an error if the file's structure is broken.
    fn index(&self, path: &Path) -> Result<Spans, DataError>;

    /// Replaces a record's bytes by the encoded image, and returns its label. `label` is the
    /// label in the index.
    ///
    /// # Errors
    /// Describes what is wrong with the record.
    fn open(&self, bytes: &mut Vec<u8>, label: i64) -> Result<i64, String>;

    /// Number of bytes before and after the span that `open` needs.
    fn margins(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// The records of all files.
#[derive(Debug)]
pub struct Shards<S> {
    shard: S,
    files: Files,
    spans: Vec<Spans>,
    /// Number of the first record of each file, and the number of records at the end.
    starts: Vec<u64>,
    num_classes: u32,
    notes: String,
}

impl<S: Shard> Shards<S> {
    /// Opens a file or the files of a directory, in the order of their names.
    ///
    /// # Errors
    /// Returns an error if there is no file, if one cannot be read, or if there is no record.
    pub fn open(shard: S, path: &Path, cache: &Cache) -> Result<Self, DataError> {
        let found = crate::files::find(path, shard.endings())?;
        let mut notes = found.words();
        let paths = found.paths;
        let mut left_out = LeftOut::default();
        let mut spans = Vec::new();
        let mut starts = vec![0];
        for file in &paths {
            let found: Spans = cache.get(file, shard.kind(), b"", || shard.index(file))?;
            if !found.is_sane() {
                return Err(DataError::invalid(file, "its index is damaged; delete it"));
            }
            let end = starts.last().unwrap_or(&0) + found.offsets.len() as u64;
            starts.push(end);
            left_out.join(&found.left_out);
            spans.push(found);
        }
        let others = left_out.words("sample without an image", "samples without an image");
        if starts.last() == Some(&0) {
            let reason = format!("holds no sample{others}");
            return Err(DataError::invalid(path, reason));
        }
        notes.push_str(&others);
        let highest = spans.iter().flat_map(|spans| &spans.labels).max();
        let num_classes = highest.map_or(0, |highest| highest + 1);
        let num_classes = u32::try_from(num_classes).map_err(|_| {
            DataError::invalid(path, format!("label {} is too high", num_classes - 1))
        })?;
        Ok(Self {
            shard,
            files: Files::new(paths),
            spans,
            starts,
            num_classes,
            notes,
        })
    }

    /// Returns the file of a record number, and the record in it.
    fn find(&self, number: u64) -> (usize, usize) {
        let file = self
            .starts
            .partition_point(|start| *start <= number)
            .saturating_sub(1);
        let record = number - self.starts.get(file).copied().unwrap_or(0);
        (file, usize::try_from(record).unwrap_or(usize::MAX))
    }
}

impl<S: Shard> Records for Shards<S> {
    fn num_records(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    fn num_classes(&self) -> u32 {
        self.num_classes
    }

    fn read(&self, number: u64, into: &mut Vec<u8>) -> Result<Record, DataError> {
        let (file, record) = self.find(number);
        let span = self.spans.get(file).and_then(|spans| {
            Some((
                *spans.offsets.get(record)?,
                *spans.lengths.get(record)?,
                *spans.labels.get(record)?,
            ))
        });
        let Some((offset, length, label)) = span else {
            return Err(DataError::NoSuchSample {
                sample: number,
                num_samples: self.num_records(),
            });
        };
        let (before, after) = self.shard.margins();
        let length = u64::from(length) + before + after;
        let offset_of_all = offset.saturating_sub(before);
        self.files.read_record(file, offset_of_all, length, into)?;
        let label = self.shard.open(into, label).map_err(|reason| {
            DataError::corrupt(self.files.path(file), Place::Byte(offset), reason)
        })?;
        Ok(Record::Encoded { label })
    }

    fn notes(&self) -> String {
        self.notes.clone()
    }

    fn locate(&self, number: u64) -> (PathBuf, Place) {
        let (file, record) = self.find(number);
        let spans = self.spans.get(file);
        let offset = spans.and_then(|spans| spans.offsets.get(record).copied());
        (
            self.files.path(file).to_owned(),
            Place::Byte(offset.unwrap_or(0)),
        )
    }
}
