//! The files of a data set, read at positions by many threads. Few are open at a time, because a data set can
//! have more files than a process may open.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{DataError, Place};

/// Most files that are open at a time.
const MAX_OPEN: usize = 128;

/// Files by number, opened when they are read.
#[derive(Debug)]
pub struct Files {
    paths: Vec<PathBuf>,
    /// The newest last.
    open: Mutex<Vec<(usize, Arc<File>)>>,
}

impl Files {
    /// Files that exist.
    #[must_use]
    pub const fn new(paths: Vec<PathBuf>) -> Self {
        Self {
            paths,
            open: Mutex::new(Vec::new()),
        }
    }

    /// Their paths.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Path of a file; empty if there is no such file.
    #[must_use]
    pub fn path(&self, number: usize) -> &Path {
        self.paths.get(number).map_or(Path::new(""), |path| path)
    }

    /// Fills a buffer from a position.
    ///
    /// # Errors
    /// The file cannot be opened or read, or ends before: then the record is corrupt.
    pub fn read_at(&self, number: usize, offset: u64, into: &mut [u8]) -> Result<(), DataError> {
        let path = self.path(number);
        self.handle(number)?
            .read_exact_at(into, offset)
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => ends_within(path, offset, into.len()),
                _ => DataError::io(path)(error),
            })
    }

    /// Fills a buffer with so many bytes from a position. Memory is not taken for more than the file has.
    ///
    /// # Errors
    /// As [`Self::read_at`].
    pub fn read_record(
        &self,
        number: usize,
        offset: u64,
        length: u64,
        into: &mut Vec<u8>,
    ) -> Result<(), DataError> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > into.capacity() {
            let path = self.path(number);
            let metadata = self.handle(number)?.metadata();
            let available = metadata.map_err(DataError::io(path))?.len();
            if offset.saturating_add(length as u64) > available {
                return Err(ends_within(path, offset, length));
            }
        }
        into.resize(length, 0);
        self.read_at(number, offset, into)
    }

    /// An open file.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn handle(&self, number: usize) -> Result<Arc<File>, DataError> {
        {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = open.iter().rposition(|(other, _)| *other == number) {
                let found = open.remove(at);
                let file = Arc::clone(&found.1);
                open.push(found);
                return Ok(file);
            }
        }
        // Two threads can open the same file; both handles are good.
        let path = self.path(number);
        let file = Arc::new(File::open(path).map_err(DataError::io(path))?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() == MAX_OPEN {
            open.remove(0);
        }
        open.push((number, Arc::clone(&file)));
        Ok(file)
    }
}

/// The files of a directory with one of some endings, sorted by name; the path itself if it is a file.
///
/// # Errors
/// There is none, or the directory cannot be read.
pub fn find(path: &Path, endings: &[&str]) -> Result<Vec<PathBuf>, DataError> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(DataError::io(path))? {
        let entry = entry.map_err(DataError::io(path))?.path();
        let name = entry.file_name().and_then(|name| name.to_str());
        let fits = |name: &str| {
            !name.starts_with('.') && endings.iter().any(|ending| name.ends_with(ending))
        };
        if name.is_some_and(fits) && entry.is_file() {
            found.push(entry);
        }
    }
    found.sort();
    if found.is_empty() {
        let reason = format!("holds no file that ends with {}", endings.join(" or "));
        return Err(DataError::invalid(path, reason));
    }
    Ok(found)
}

fn ends_within(path: &Path, offset: u64, length: usize) -> DataError {
    let reason = format!("the file ends within the {length} bytes of the record");
    DataError::corrupt(path, Place::Byte(offset), reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_files_than_may_be_open_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..MAX_OPEN + 20)
            .map(|number| {
                let path = directory.path().join(format!("{number:04}.bin"));
                std::fs::write(&path, [u8::try_from(number).unwrap()]).unwrap();
                path
            })
            .collect();
        let files = Files::new(find(directory.path(), &[".bin"]).unwrap());
        assert_eq!(files.paths(), paths);
        for _ in 0..2 {
            for number in 0..paths.len() {
                let mut byte = [0];
                files.read_at(number, 0, &mut byte).unwrap();
                assert_eq!(usize::from(byte[0]), number);
            }
        }
        assert!(files.open.lock().unwrap().len() <= MAX_OPEN);
    }

    #[test]
    fn a_record_beyond_the_end_is_corrupt_and_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.bin");
        std::fs::write(&path, [1, 2, 3]).unwrap();
        let error = Files::new(vec![path])
            .read_at(0, 2, &mut [0; 4])
            .unwrap_err();
        assert!(error.is_one_record());
        let text = error.to_string();
        assert!(text.contains("a.bin at byte 2"), "{text}");
    }

    #[test]
    fn a_directory_without_files_of_the_format_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let text = find(directory.path(), &[".tar"]).unwrap_err().to_string();
        assert!(text.contains(".tar"), "{text}");
    }
}
