//! The files of a data set, which many threads read at positions. Only some of them are open at a
//! time, because a data set can have more files than a process may open.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{DataError, Place};
use crate::left_out::{LeftOut, counted};

/// Maximum number of files that are open at a time.
const MAX_OPEN: usize = 128;

/// Files by number, which are opened on demand.
#[derive(Debug)]
pub struct Files {
    paths: Vec<PathBuf>,
    /// Open files; the last one was used last.
    open: Mutex<Vec<(usize, Arc<File>)>>,
}

impl Files {
    /// Creates a list of existing files.
    #[must_use]
    pub const fn new(paths: Vec<PathBuf>) -> Self {
        Self {
            paths,
            open: Mutex::new(Vec::new()),
        }
    }

    /// Returns the paths of the files.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Returns the path of a file; empty if there is no such file.
    #[must_use]
    pub fn path(&self, number: usize) -> &Path {
        self.paths.get(number).map_or(Path::new(""), |path| path)
    }

    /// Fills a buffer from a position of a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened or read. If the file ends too early,
    /// the record is corrupt.
    pub fn read_at(&self, number: usize, offset: u64, into: &mut [u8]) -> Result<(), DataError> {
        let path = self.path(number);
        self.handle(number)?
            .read_exact_at(into, offset)
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => ends_within(path, offset, into.len()),
                _ => DataError::io(path)(error),
            })
    }

    /// Fills a buffer with a number of bytes from a position. It allocates no more memory than
    /// the file has bytes.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read_at`].
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

    /// Returns an open file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
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
        // Two threads may open the same file at once; both handles are valid.
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

/// The files that were found for a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Paths of the files, sorted by name.
    pub paths: Vec<PathBuf>,
    /// Other files in the directory, which are not used.
    pub left_out: LeftOut,
}

impl Found {
    /// Formats the files for a sentence, such as
    /// `, from 3 files, 1 file of another kind left out (e.g. x.txt)`.
    #[must_use]
    pub fn words(&self) -> String {
        let files = counted(self.paths.len() as u64, "file", "files");
        format!(", from {files}{}", self.left_out.files())
    }
}

/// Finds the files of a directory that have one of the endings, sorted by name. If the path is a
/// file, returns the path itself. Hidden files are not counted.
///
/// # Errors
/// Returns an error if there is no such file, or if the directory cannot be read.
pub fn find(path: &Path, endings: &[&str]) -> Result<Found, DataError> {
    let (mut paths, mut left_out) = (Vec::new(), LeftOut::default());
    if path.is_file() {
        paths.push(path.to_owned());
        return Ok(Found { paths, left_out });
    }
    for entry in std::fs::read_dir(path).map_err(DataError::io(path))? {
        let entry = entry.map_err(DataError::io(path))?;
        let (name, entry) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        if has_ending(&name, endings) && entry.is_file() {
            paths.push(entry);
        } else {
            left_out.add(name.into_owned());
        }
    }
    paths.sort();
    if paths.is_empty() {
        let known = |ending: &&&str| !ending.is_empty();
        let endings: Vec<_> = endings.iter().filter(known).copied().collect();
        let endings = endings.join(" or ");
        let reason = format!("holds no file that ends with {endings}{}", left_out.files());
        return Err(DataError::invalid(path, reason));
    }
    Ok(Found { paths, left_out })
}

/// Whether a name has one of the endings. A number that TensorFlow's tools append is ignored, as in
/// `train.tfrecord-00000-of-00010`. The empty ending matches a name without a dot.
fn has_ending(name: &str, endings: &[&str]) -> bool {
    let numbered = name.rsplit_once("-of-");
    let base = numbered.and_then(|(start, _)| start.rsplit_once('-'));
    let base = base.map_or(name, |(base, _)| base);
    endings.iter().any(|ending| match *ending {
        "" => !base.contains('.'),
        ending => base.ends_with(ending),
    })
}

fn ends_within(path: &Path, offset: u64, length: usize) -> DataError {
    let reason = format!("the file ends within the {length} bytes of the record");
    DataError::corrupt(path, Place::Byte(offset), reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_files_than_the_open_limit_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..MAX_OPEN + 20)
            .map(|number| {
                let path = directory.path().join(format!("{number:04}.bin"));
                std::fs::write(&path, [u8::try_from(number).unwrap()]).unwrap();
                path
            })
            .collect();
        let files = Files::new(find(directory.path(), &[".bin"]).unwrap().paths);
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
    fn record_beyond_the_end_is_corrupt_and_named() {
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
    fn other_files_are_named_unless_hidden() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a.tar", "b.tar", "c.tar.gz", "README.md", ".a.tar.index"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        assert_eq!(
            find(directory.path(), &[".tar"]).unwrap().words(),
            ", from 2 files, 2 files of other kinds left out (e.g. README.md)"
        );
    }

    #[test]
    fn tensorflow_file_names_are_recognized() {
        let directory = tempfile::tempdir().unwrap();
        let known = [
            "a.tfrecord",
            "train-00000-of-00010",
            "x.tfrecord-00000-of-00010",
        ];
        for name in known.iter().chain(&["README.md", "x.json-00000-of-00010"]) {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let found = find(directory.path(), &["", ".tfrecord"]).unwrap();
        assert_eq!(found.paths, known.map(|name| directory.path().join(name)));
    }

    #[test]
    fn directory_without_data_files_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let text = find(directory.path(), &[".tar"]).unwrap_err().to_string();
        assert!(text.contains(".tar"), "{text}");
    }
}
