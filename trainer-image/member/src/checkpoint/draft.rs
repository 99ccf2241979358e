//! Creates small files that get their name atomically and only if no other file has it: the number
//! of a job and the beginning of a ledger. Several processes may try at once, and the answer of a
//! network volume may be lost after the volume has done the operation.

use std::collections::hash_map::RandomState;
use std::fs::{File, Metadata};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::error::is_refusal;

/// A file that does not have its name yet. Its temporary path is removed on drop.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
    file: File,
    text: String,
}

/// How a file gets a name exclusively. A file system that refuses one way may support another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Atomically, by a hard link or by a rename that does not replace.
    Link,
    /// Atomically, by a hard link or by a rename that does not replace.
    Rename,
    /// By writing the file a second time. A reader may see an incomplete file.
    Create,
}

impl Draft {
    /// Creates the directory, writes a file in it and waits until its bytes are durable.
    ///
    /// # Errors
    /// The error of the operating system for the first operation that the volume refuses.
    pub(crate) fn write(folder: &Path, text: &str) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(draft_name());
        let mut draft = Self {
            file: File::create_new(&path)?,
            path,
            text: text.to_owned(),
        };
        draft.file.write_all(text.as_bytes())?;
        draft.file.sync_all()?;
        Ok(draft)
    }

    /// Gives the file its name. Returns the named file, open for writing.
    ///
    /// # Errors
    /// `AlreadyExists` if another file has the name, and any other error of the volume.
    pub(crate) fn publish(&self, name: &Path) -> io::Result<File> {
        match self.publish_by(Way::Link, name) {
            // An earlier attempt may have succeeded although its answer was lost. After a rename
            // the temporary path is gone.
            Err(error) if is_done_or_taken(&error) && self.has(name).unwrap_or_default() => {
                self.file.try_clone()
            }
            result => result,
        }
    }

    fn publish_by(&self, way: Way, name: &Path) -> io::Result<File> {
        let next = match way {
            Way::Link => Some(Way::Rename),
            Way::Rename => Some(Way::Create),
            Way::Create => None,
        };
        match (self.try_by(way, name), next) {
            (Err(error), Some(next)) if is_refusal(&error) || is_unknown(&error) => {
                self.publish_by(next, name)
            }
            (result, _) => result,
        }
    }

    fn try_by(&self, way: Way, name: &Path) -> io::Result<File> {
        let own = || self.file.try_clone();
        match way {
            Way::Link => {
                std::fs::hard_link(&self.path, name)?;
                own()
            }
            Way::Rename => {
                renameat_with(CWD, &self.path, CWD, name, RenameFlags::NOREPLACE)?;
                own()
            }
            Way::Create => {
                let mut file = File::create_new(name)?;
                let written = file.write_all(self.text.as_bytes());
                if let Err(error) = written.and_then(|()| file.sync_all()) {
                    // Otherwise the next attempt, on a volume that has space again, takes this file
                    // for another process'.
                    let _ = std::fs::remove_file(name);
                    return Err(error);
                }
                Ok(file)
            }
        }
    }

    /// Whether the name belongs to this file.
    fn has(&self, name: &Path) -> io::Result<bool> {
        let id = |of: Metadata| (of.dev(), of.ino());
        // A restarted NFS server may not know the file handle any more.
        let own = self.file.metadata();
        let own = own.or_else(|_| std::fs::metadata(&self.path))?;
        Ok(id(std::fs::metadata(name)?) == id(own))
    }
}

/// Whether the temporary path is gone or the name exists.
fn is_done_or_taken(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, NotFound};
    matches!(error.kind(), AlreadyExists | NotFound)
}

/// Whether a file system does not support a flag of `renameat2`.
pub(super) fn is_unknown(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}

impl Drop for Draft {
    fn drop(&mut self) {
        // The file may have been renamed.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A unique name: pods have equal process ids and share the volume. The host name is for people who
/// list the directory.
pub(super) fn draft_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    // The standard library's hashers have random keys.
    let random = RandomState::new().build_hasher().finish();
    format!(".{}-{random:016x}", plain(host.trim()))
}

/// Replaces all characters but ASCII letters and digits by `-`.
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
    fn link_with_lost_answer_is_recognized_as_own() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("jobs");
        let own = Draft::write(&folder, "own").unwrap();
        let other = Draft::write(&folder, "other").unwrap();
        let name = folder.join("name");
        // The volume has created the link, and the answer was lost.
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
    fn rename_with_lost_answer_is_recognized() {
        let root = tempfile::tempdir().unwrap();
        let (own, name) = (
            Draft::write(root.path(), "own").unwrap(),
            root.path().join("name"),
        );
        std::fs::rename(&own.path, &name).unwrap();
        own.publish(&name).unwrap();
        assert_eq!(names(root.path()), ["name"]);
    }

    #[test]
    fn each_way_names_a_whole_file_exclusively() {
        let root = tempfile::tempdir().unwrap();
        for way in [Way::Link, Way::Rename, Way::Create] {
            let folder = root.path().join(format!("{way:?}"));
            let name = folder.join("name");
            let own = Draft::write(&folder, "own").unwrap();
            let other = Draft::write(&folder, "other").unwrap();
            let mut file = own.publish_by(way, &name).unwrap();
            let taken = other.publish_by(way, &name).unwrap_err();
            assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists, "{way:?}");
            file.write_all(b" and more").unwrap();
            drop((own, other));
            assert_eq!(names(&folder), ["name"], "{way:?}");
            let text = std::fs::read_to_string(&name).unwrap();
            assert_eq!(text, "own and more", "{way:?}");
        }
    }

    /// Needs root and a file system with attributes.
    #[test]
    fn refused_link_and_rename_fall_back_to_create() {
        let root = tempfile::tempdir().unwrap();
        let draft = Draft::write(root.path(), "own").unwrap();
        // Such a file can be neither linked nor renamed.
        let chattr = |flag: &str| {
            let made = std::process::Command::new("chattr")
                .arg(flag)
                .arg(&draft.path)
                .output();
            made.is_ok_and(|made| made.status.success())
        };
        if !chattr("+a") {
            let _ = writeln!(io::stderr(), "not tested: chattr is not possible here");
            return;
        }
        let name = root.path().join("name");
        let refused = [Way::Link, Way::Rename].map(|way| draft.try_by(way, &name).unwrap_err());
        assert!(refused.iter().all(is_refusal), "{refused:?}");
        let published = draft.publish(&name);
        assert!(chattr("-a"));
        published.unwrap();
        assert_eq!(std::fs::read_to_string(&name).unwrap(), "own");
    }

    #[test]
    fn draft_names_are_unique_for_equal_process_ids() {
        assert_ne!(draft_name(), draft_name());
    }
}
