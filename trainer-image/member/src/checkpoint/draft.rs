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

use super::error::is_refusal;

/// A file that does not have its name yet. What is left of it is removed on drop.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
    file: File,
    text: String,
}

/// How a file gets a name that no other file has. File systems that refuse one way may know another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// At once or not at all.
    Link,
    /// At once or not at all.
    Rename,
    /// By writing it a second time. A reader may see a part of it.
    Create,
}

impl Draft {
    /// Writes a file into a directory, which is created, and waits until its bytes are durable.
    ///
    /// # Errors
    /// The volume refuses.
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

    /// Gives it its name; returns the file of that name, to be written to.
    ///
    /// # Errors
    /// `AlreadyExists` when another file has the name, and whatever the volume refuses.
    pub(crate) fn publish(&self, name: &Path) -> io::Result<File> {
        match self.publish_by(Way::Link, name) {
            // An earlier try may have done it, although its answer was lost. After a rename the draft is gone.
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
                    // Else the next try, on a volume that has room again, takes it for another process' file.
                    let _ = std::fs::remove_file(name);
                    return Err(error);
                }
                Ok(file)
            }
        }
    }

    /// Whether the name is this file's.
    fn has(&self, name: &Path) -> io::Result<bool> {
        let id = |of: Metadata| (of.dev(), of.ino());
        // A server that was restarted may not know the file by its handle any more.
        let own = self.file.metadata();
        let own = own.or_else(|_| std::fs::metadata(&self.path))?;
        Ok(id(std::fs::metadata(name)?) == id(own))
    }
}

/// Whether the draft is gone, or its name is there.
fn is_done_or_taken(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, NotFound};
    matches!(error.kind(), AlreadyExists | NotFound)
}

/// Whether a file system does not know the flag of a rename.
pub(super) fn is_unknown(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}

impl Drop for Draft {
    fn drop(&mut self) {
        // It may have been renamed.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A name that no other process uses: pods have the same process ids, and share the volume. The host's name is for people.
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
    fn link_with_lost_answer_is_recognized_as_own() {
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
        // Neither a link nor a rename of such a file is allowed.
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
