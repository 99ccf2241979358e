//! The token file of a text: its name, its creation by one process, and the removal of outdated
//! files.
//!
//! The name contains a hash of the tokenizer and a hash of the text's stamp, so a file with this
//! name is valid. When it is created, files of earlier states of the text are removed. Files of
//! other tokenizers for the present text stay, because another job may be reading them.

use std::io::BufWriter;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::cache::{Cache, Stamp, readable_by_all};
use crate::error::DataError;
use crate::lock::Lock;

/// Number of digits of each hash in a name.
const NUM_DIGITS: usize = 16;
/// Ending of a token file's name.
const ENDING: &str = "tokens";
/// Separator after the ending while the file is being written.
const PART: &str = ".part-";

/// Returns the token file of a text: an existing one, or one that `write` fills now. `tokenizer` is
/// a hash of 16 digits over everything on which the tokens depend besides the text. If several
/// processes need the file, one writes it while the others wait. If that one ends before the file
/// is complete, another one writes it.
///
/// # Errors
/// Returns the errors of `write`, and an error if the text cannot be read or no directory for
/// the tokens is writable.
pub(super) fn tokens_of(
    text: &Path,
    tokenizer: &str,
    cache: &Cache,
    write: impl FnOnce(&mut BufWriter<NamedTempFile>) -> Result<(), DataError>,
) -> Result<PathBuf, DataError> {
    let stamp = Stamp::of(text, b"")?.short();
    let places = cache.places(text, &format!("{tokenizer}.{stamp}.{ENDING}"));
    // A file with this name is complete, because it gets its name after everything is written.
    if let Some(place) = places.iter().find(|place| place.is_file()) {
        return Ok(place.clone());
    }
    let locks = cache.places(text, "tokens.lock");
    let mut refused = None;
    for (place, lock) in places.into_iter().zip(locks) {
        let directory = place.parent().unwrap_or(Path::new(".")).to_owned();
        let created = std::fs::create_dir_all(&directory);
        let lock = Lock::wait(&lock);
        if place.is_file() {
            return Ok(place);
        }
        let neighbours = Neighbours::of(&place, &stamp);
        // No other process writes now, so unfinished files belong to processes that have ended.
        if lock.is_some() {
            neighbours.remove(|name| !name.is_whole);
        }
        match created.and_then(|()| part(&place, &directory)) {
            Ok(part) => {
                let mut writer = BufWriter::with_capacity(1 << 20, part);
                write(&mut writer)?;
                finish(writer, &place)?;
                neighbours.remove(|name| name.is_whole && name.stamp != stamp);
                return Ok(place);
            }
            Err(error) => refused = Some((directory, error)),
        }
    }
    let (directory, error) =
        refused.unwrap_or_else(|| (PathBuf::new(), std::io::ErrorKind::NotFound.into()));
    let reason = format!(
        "{} cannot be written ({error}); name a directory for tokenized text",
        directory.display()
    );
    Err(DataError::config("data.reading.cacheDir", reason))
}

fn part(place: &Path, directory: &Path) -> std::io::Result<NamedTempFile> {
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    readable_by_all()
        .prefix(&format!("{name}{PART}"))
        .tempfile_in(directory)
}

/// Gives a written file its name.
fn finish(writer: BufWriter<NamedTempFile>, place: &Path) -> Result<(), DataError> {
    let file = writer
        .into_inner()
        .map_err(|error| DataError::io(place)(error.into_error()))?;
    file.as_file().sync_all().map_err(DataError::io(place))?;
    file.persist(place)
        .map_err(|error| DataError::io(place)(error.error))?;
    Ok(())
}

/// The token files of one text in one directory.
struct Neighbours {
    directory: PathBuf,
    /// Common beginning of their names.
    prefix: String,
}

/// The parts of a token file's name.
struct Name<'a> {
    stamp: &'a str,
    is_whole: bool,
}

impl Neighbours {
    fn of(place: &Path, stamp: &str) -> Self {
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let own = NUM_DIGITS + ".".len() + stamp.len() + ".".len() + ENDING.len();
        let prefix = name.get(..name.len().saturating_sub(own));
        Self {
            directory: place.parent().unwrap_or(Path::new(".")).to_owned(),
            prefix: prefix.unwrap_or(&name).to_owned(),
        }
    }

    fn name<'a>(&self, name: &'a str) -> Option<Name<'a>> {
        let is_hash = |text: &str| {
            text.len() == NUM_DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        let (tokenizer, rest) = name.strip_prefix(&self.prefix)?.split_once('.')?;
        let (stamp, ending) = rest.split_once('.')?;
        let rest = ending.strip_prefix(ENDING)?;
        let is_whole = rest.is_empty();
        let is_one = is_hash(tokenizer) && is_hash(stamp);
        (is_one && (is_whole || rest.starts_with(PART))).then_some(Name { stamp, is_whole })
    }

    /// Removes some of the files. A file that cannot be removed only wastes space.
    fn remove(&self, is_useless: impl Fn(&Name<'_>) -> bool) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_str().and_then(|name| self.name(name));
            if name.is_some_and(|name| is_useless(&name)) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests;
