//! A small file that gets its name when it is whole, if there is no other file of that name: the number of a job, and
//! the beginning of a ledger. Several processes may try at once, and the answer of a network volume may be lost although
//! it has done what it was asked.

use std::collections::hash_map::RandomState;
use std::fs::{File, Metadata};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::trouble::is_refusal;

/// A file without its name. What is left of it goes with it.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
    file: File,
}

impl Draft {
    /// Writes a file into a directory, which is created, and waits until its bytes are durable.
    ///
    /// # Errors
    /// The volume refuses.
    pub(crate) fn write(folder: &Path, text: &str) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(draft_name());
        let file = File::create_new(&path)?;
        let mut draft = Self { path, file };
        draft.file.write_all(text.as_bytes())?;
        draft.file.sync_all()?;
        Ok(draft)
    }

    /// Gives it its name, at once or not at all, by a hard link. It may be tried again after an error: a link whose answer
    /// was lost is found. A file system without hard links renames the file if nothing has the name.
    ///
    /// # Errors
    /// `AlreadyExists` when another file has the name, and whatever the volume refuses.
    pub(crate) fn publish(&self, name: &Path) -> io::Result<()> {
        match std::fs::hard_link(&self.path, name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.has(name, error),
            Err(error) if is_refusal(&error) => {
                let renamed = renameat_with(CWD, &self.path, CWD, name, RenameFlags::NOREPLACE);
                // The words of the first refusal: it is what the file system lacks.
                renamed.map_err(|other| match io::Error::from(other) {
                    taken if taken.kind() == io::ErrorKind::AlreadyExists => taken,
                    _ => error,
                })
            }
            result => result,
        }
    }

    /// The file, whose name is another one now.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// Whether the name is this file's.
    fn has(&self, name: &Path, error: io::Error) -> io::Result<()> {
        let same =
            |its: &Metadata, own: &Metadata| (its.dev(), its.ino()) == (own.dev(), own.ino());
        if same(&std::fs::metadata(name)?, &self.file.metadata()?) {
            return Ok(());
        }
        Err(error)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // It may have been renamed.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Nobody else's: pods have the same process ids, and share the volume. The host's name is for people.
pub(super) fn draft_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    // The standard library's hashers have random keys.
    let random = RandomState::new().build_hasher().finish();
    format!(".{}-{random:016x}", plain(host.trim()))
}

/// Letters and digits.
pub(super) fn plain(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_name_whose_answer_was_lost_is_the_drafts_own_and_that_of_another_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("jobs");
        let own = Draft::write(&folder, "own").unwrap();
        let other = Draft::write(&folder, "other").unwrap();
        let name = folder.join("name");
        // The volume has made the link, and the answer was lost.
        std::fs::hard_link(&own.path, &name).unwrap();
        own.publish(&name).unwrap();
        own.publish(&name).unwrap();
        let taken = other.publish(&name).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        drop((own, other));
        assert_eq!(names(&folder), ["name"], "no draft stays");
        assert_eq!(std::fs::read_to_string(&name).unwrap(), "own");
    }

    #[test]
    fn processes_with_the_same_id_do_not_write_the_same_draft() {
        assert_ne!(draft_name(), draft_name());
    }
}
