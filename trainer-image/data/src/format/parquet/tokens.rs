//! A column of token lists as one sequence of tokens per file.

use std::path::{Path, PathBuf};

use parquet::basic::Type;
use parquet::file::reader::FileReader;
use serde::{Deserialize, Serialize};

use super::columns::listed;
use super::groups::Groups;
use super::{MAX_KEPT_BYTES, reader, refused};
use crate::cache::Cache;
use crate::error::{DataError, Place};
use crate::format::tokens::Tokens;

/// Number of tokens of each row group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Counts(Vec<u64>);

/// The tokens of some files: the lists of each file, one after the other.
#[derive(Debug)]
pub struct TokenLists {
    files: Vec<Lists>,
    num_tokens: Vec<u64>,
    /// Cached row groups, by file and row group.
    kept: Groups<(usize, usize), Vec<u32>>,
}

/// The lists of one file.
#[derive(Debug)]
struct Lists {
    path: PathBuf,
    column: usize,
    /// Position of the first token of each row group, and the number of tokens at the end.
    starts: Vec<u64>,
}

impl TokenLists {
    /// Opens files whose column is a list of integers.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or has no such column.
    pub fn open(paths: &[PathBuf], column: &str, cache: &Cache) -> Result<Self, DataError> {
        Self::open_within(MAX_KEPT_BYTES, paths, column, cache)
    }

    /// The same with another memory limit of the cached row groups.
    pub(super) fn open_within(
        max_kept_bytes: usize,
        paths: &[PathBuf],
        column: &str,
        cache: &Cache,
    ) -> Result<Self, DataError> {
        let open = |path: &PathBuf| Lists::open(path, column, cache);
        let files: Vec<Lists> = paths.iter().map(open).collect::<Result<_, _>>()?;
        let num_tokens = files.iter().map(|file| file.starts.last().copied());
        Ok(Self {
            num_tokens: num_tokens.map(Option::unwrap_or_default).collect(),
            files,
            kept: Groups::new(max_kept_bytes),
        })
    }

    #[cfg(test)]
    pub(super) fn num_bytes_kept(&self) -> usize {
        self.kept.num_bytes()
    }
}

impl Lists {
    fn open(path: &Path, name: &str, cache: &Cache) -> Result<Self, DataError> {
        let file = reader(path)?;
        let schema = file.metadata().file_metadata().schema_descr();
        let prefix = format!("{name}.");
        let is_it = |column: &parquet::schema::types::ColumnDescPtr| {
            column.path().string().starts_with(&prefix)
                && column.max_rep_level() == 1
                && matches!(column.physical_type(), Type::INT32 | Type::INT64)
        };
        let column = schema.columns().iter().position(is_it).ok_or_else(|| {
            DataError::invalid(
                path,
                format!("has no column {name} with lists of whole numbers"),
            )
        })?;
        let mut lists = Self {
            path: path.to_owned(),
            column,
            starts: vec![0],
        };
        let count = || {
            let groups = 0..file.num_row_groups();
            let counts = groups.map(|group| Ok(lists.load(group)?.0.len() as u64));
            Ok(Counts(counts.collect::<Result<_, DataError>>()?))
        };
        let Counts(counts) = cache.get(path, "parquet-tokens-index", name.as_bytes(), count)?;
        for count in counts {
            lists.starts.push(lists.starts.last().unwrap_or(&0) + count);
        }
        Ok(lists)
    }

    fn num_groups(&self) -> u64 {
        self.starts.len() as u64 - 1
    }

    fn load(&self, group: usize) -> Result<(Vec<u32>, usize), DataError> {
        let refuse = |error| refused(&self.path, &error);
        let file = reader(&self.path)?;
        let rows = file.get_row_group(group).map_err(refuse)?;
        let numbers = listed(rows.as_ref(), self.column).map_err(refuse)?;
        let start = self.starts.get(group).copied().unwrap_or(0);
        let token = |(at, number): (usize, i64)| {
            u32::try_from(number).map_err(|_| {
                let place = Place::Record(start + at as u64);
                DataError::corrupt(&self.path, place, format!("{number} is not a token"))
            })
        };
        let tokens: Result<Vec<u32>, _> = numbers.into_iter().enumerate().map(token).collect();
        let tokens = tokens?;
        let num_bytes = tokens.len() * size_of::<u32>();
        Ok((tokens, num_bytes))
    }
}

impl Tokens for TokenLists {
    fn num_tokens(&self) -> &[u64] {
        &self.num_tokens
    }

    fn path(&self, file: usize) -> &Path {
        &self.files[file].path
    }

    fn read(
        &self,
        number: usize,
        start: u64,
        _: &mut Vec<u8>,
        into: &mut [u8],
    ) -> Result<(), DataError> {
        let file = &self.files[number];
        let mut at = start;
        let mut left = into.as_chunks_mut::<4>().0;
        while !left.is_empty() {
            let group = file
                .starts
                .partition_point(|start| *start <= at)
                .saturating_sub(1);
            let tokens = self.kept.get((number, group), || file.load(group))?;
            let skip = usize::try_from(at - file.starts[group]).unwrap_or(usize::MAX);
            let tokens = tokens.get(skip..).unwrap_or_default();
            let count = tokens.len().min(left.len());
            if count == 0 {
                let reason = "the file ends within a sample; its index is outdated";
                return Err(DataError::corrupt(&file.path, Place::Record(at), reason));
            }
            let (now, later) = left.split_at_mut(count);
            for (place, token) in now.iter_mut().zip(tokens) {
                *place = token.to_ne_bytes();
            }
            left = later;
            at += count as u64;
        }
        Ok(())
    }

    fn place(&self, token: u64) -> Place {
        Place::Record(token)
    }

    /// Average number of tokens of a row group, over all files.
    fn tokens_per_block(&self) -> u64 {
        let num_groups: u64 = self.files.iter().map(Lists::num_groups).sum();
        self.num_tokens.iter().sum::<u64>() / num_groups.max(1)
    }
}
