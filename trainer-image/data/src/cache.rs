//! A cache of values that are computed once from a file, such as indexes and token files. A cache
//! file is beside the data file or, if that directory is not writable, in the cache directory. It
//! is valid for one size, modification time and beginning of the data file. Otherwise, or if the
//! cache file is damaged, the value is computed again.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::DataError;

/// Number of bytes at the beginning of the file that are compared.
const HEAD_BYTES: u64 = 64 * 1024;
/// Increase this when the format of cache files changes.
const VERSION: u32 = 1;

/// The place of cache files.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    /// Directory for cache files if the directory of the data is not writable.
    pub directory: Option<PathBuf>,
}

/// The state of a file when a value was computed from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    version: u32,
    num_bytes: u64,
    modified_nanoseconds: u128,
    /// SHA-256 of the beginning of the file or, for a directory, of names and times
    /// that the caller provides.
    head: String,
}

impl Stamp {
    /// Returns the stamp of a file as it is now. `more` contains everything else on
    /// which the computation depends.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn of(path: &Path, more: &[u8]) -> Result<Self, DataError> {
        let mut hash = Sha256::new();
        hash.update(more);
        let metadata = std::fs::metadata(path).map_err(DataError::io(path))?;
        if metadata.is_file() {
            let mut head = Vec::new();
            let file = File::open(path).map_err(DataError::io(path))?;
            file.take(HEAD_BYTES)
                .read_to_end(&mut head)
                .map_err(DataError::io(path))?;
            hash.update(&head);
        }
        let modified = metadata.modified().map_err(DataError::io(path))?;
        let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            version: VERSION,
            num_bytes: if metadata.is_file() {
                metadata.len()
            } else {
                0
            },
            modified_nanoseconds: since.as_nanos(),
            head: hex(&hash.finalize()),
        })
    }

    /// Formats the stamp as part of a file's name.
    #[must_use]
    pub fn short(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        hex(&Sha256::digest(text))[..16].to_owned()
    }
}

/// First line of a cache file.
#[derive(Serialize, Deserialize)]
struct Header {
    stamp: Stamp,
    /// SHA-256 of the rest.
    body: String,
}

impl Cache {
    /// Returns the value that `build` computes from a file, from the cache if possible. A value
    /// that cannot be cached is no error; it is computed again the next time.
    ///
    /// # Errors
    /// Returns the errors of `build`, and of reading the file's beginning.
    pub fn get<T: Serialize + DeserializeOwned>(
        &self,
        path: &Path,
        kind: &str,
        more: &[u8],
        build: impl FnOnce() -> Result<T, DataError>,
    ) -> Result<T, DataError> {
        self.get_if(path, kind, more, |_| true, build)
    }

    /// Like [`Self::get`], but uses a cached value only if the caller says that it is current. This
    /// serves values that depend on more than one file or directory.
    ///
    /// # Errors
    /// Returns the errors of [`Self::get`].
    pub fn get_if<T: Serialize + DeserializeOwned>(
        &self,
        path: &Path,
        kind: &str,
        more: &[u8],
        is_current: impl Fn(&T) -> bool,
        build: impl FnOnce() -> Result<T, DataError>,
    ) -> Result<T, DataError> {
        let stamp = Stamp::of(path, more)?;
        let places = self.places(path, kind);
        let mut kept = places.iter().filter_map(|place| load(place, &stamp));
        if let Some(value) = kept.find(&is_current) {
            return Ok(value);
        }
        let value = build()?;
        let bytes = to_bytes(&stamp, &value);
        // Use the first place that is writable.
        let _ = places.iter().any(|place| save(place, &bytes).is_ok());
        Ok(value)
    }

    /// Returns the places for a cache file, best first.
    #[must_use]
    pub fn places(&self, path: &Path, kind: &str) -> Vec<PathBuf> {
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = name.to_string_lossy();
        let beside = path
            .parent()
            .map(|parent| parent.join(format!(".{name}.{kind}")));
        let elsewhere = self.directory.as_ref().map(|directory| {
            let whole = hex(&Sha256::digest(path.as_os_str().as_encoded_bytes()));
            directory.join(format!("{name}.{}.{kind}", &whole[..16]))
        });
        beside.into_iter().chain(elsewhere).collect()
    }
}

fn to_bytes<T: Serialize>(stamp: &Stamp, value: &T) -> Vec<u8> {
    let body = serde_json::to_vec(value).unwrap_or_default();
    let header = Header {
        stamp: stamp.clone(),
        body: hex(&Sha256::digest(&body)),
    };
    let mut bytes = serde_json::to_vec(&header).unwrap_or_default();
    bytes.push(b'\n');
    bytes.extend(body);
    bytes
}

fn load<T: DeserializeOwned>(place: &Path, stamp: &Stamp) -> Option<T> {
    let bytes = std::fs::read(place).ok()?;
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (header, body) = (&bytes[..end], &bytes[end + 1..]);
    let header: Header = serde_json::from_slice(header).ok()?;
    (header.stamp == *stamp && header.body == hex(&Sha256::digest(body)))
        .then(|| serde_json::from_slice(body).ok())?
}

/// Writes a file and renames it, so that no process reads an incomplete file.
pub(crate) fn save(place: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let directory = place.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    let mut file = readable_by_all().tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.persist(place)?;
    Ok(())
}

/// Permissions for files that other jobs use too, possibly as another user.
/// The process's umask applies.
pub(crate) fn readable_by_all<'a>() -> tempfile::Builder<'a, 'a> {
    let mut builder = tempfile::Builder::new();
    builder.permissions(Permissions::from_mode(0o666));
    builder
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Case {
        directory: tempfile::TempDir,
        built: Cell<u32>,
    }

    impl Case {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            std::fs::write(directory.path().join("data"), "some data").unwrap();
            Self {
                directory,
                built: Cell::new(0),
            }
        }

        fn data(&self) -> PathBuf {
            self.directory.path().join("data")
        }

        fn get(&self, cache: &Cache, more: &[u8]) -> Vec<u64> {
            let build = || {
                self.built.set(self.built.get() + 1);
                Ok(vec![1, 2, 3])
            };
            cache.get(&self.data(), "index", more, build).unwrap()
        }
    }

    #[test]
    fn an_index_is_built_once() {
        let case = Case::new();
        for _ in 0..3 {
            assert_eq!(case.get(&Cache::default(), b""), [1, 2, 3]);
        }
        assert_eq!(case.built.get(), 1);
    }

    #[test]
    fn changed_file_or_setting_gets_a_new_index() {
        let case = Case::new();
        case.get(&Cache::default(), b"");
        std::fs::write(case.data(), "Some data").unwrap();
        case.get(&Cache::default(), b"");
        case.get(&Cache::default(), b"other");
        assert_eq!(case.built.get(), 3);
    }

    #[test]
    fn outdated_index_is_built_again() {
        let case = Case::new();
        case.get(&Cache::default(), b"");
        let get = |is_current: bool| {
            let build = || Ok(vec![4]);
            let cache = Cache::default();
            cache.get_if(&case.data(), "index", b"", |_: &Vec<u64>| is_current, build)
        };
        assert_eq!(get(true).unwrap(), [1, 2, 3]);
        assert_eq!(get(false).unwrap(), [4]);
        assert_eq!(get(true).unwrap(), [4]);
    }

    #[test]
    fn truncated_index_is_built_again() {
        let case = Case::new();
        let cache = Cache::default();
        case.get(&cache, b"");
        let place = cache.places(&case.data(), "index").remove(0);
        let whole = std::fs::read(&place).unwrap();
        for len in 0..whole.len() {
            std::fs::write(&place, &whole[..len]).unwrap();
            assert_eq!(case.get(&cache, b""), [1, 2, 3]);
        }
        assert_eq!(case.built.get() as usize, 1 + whole.len());
    }

    #[test]
    fn cached_index_has_the_usual_permissions() {
        let case = Case::new();
        case.get(&Cache::default(), b"");
        let kept = Cache::default().places(&case.data(), "index").remove(0);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&kept), mode(&case.data()));
    }

    #[test]
    fn cache_directory_is_used_if_the_data_is_read_only() {
        let case = Case::new();
        let elsewhere = tempfile::tempdir().unwrap();
        let cache = Cache {
            directory: Some(elsewhere.path().join("cache")),
        };
        // A directory with that name cannot be replaced by a file, not even by root.
        let beside = cache.places(&case.data(), "index").remove(0);
        std::fs::create_dir_all(beside.join("x")).unwrap();
        case.get(&cache, b"");
        case.get(&cache, b"");
        assert_eq!(case.built.get(), 1);
        assert_eq!(
            std::fs::read_dir(elsewhere.path().join("cache"))
                .unwrap()
                .count(),
            1
        );
    }
}
