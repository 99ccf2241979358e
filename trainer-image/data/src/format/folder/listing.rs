//! The listing of a directory of image folders: classes, the paths of their images, and the number
//! of files left out.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::DirEntry;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::DataError;
use crate::left_out::LeftOut;

const ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];
/// Directories that file systems, NAS devices and archivers create: thumbnails,
/// deleted files, resource forks.
const NOT_DATA: [&str; 4] = ["@eaDir", "#recycle", "lost+found", "__MACOSX"];

/// Paths in one string. A list of millions takes half the memory of separate strings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Paths {
    text: String,
    /// End of each path in the text.
    ends: Vec<u64>,
}

impl Paths {
    fn sorted(mut paths: Vec<String>) -> Self {
        paths.sort_unstable();
        let mut all = Self {
            text: String::with_capacity(paths.iter().map(String::len).sum()),
            ends: Vec::with_capacity(paths.len()),
        };
        for path in paths {
            all.text.push_str(&path);
            all.ends.push(all.text.len() as u64);
        }
        all
    }

    pub(super) const fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, number: usize) -> Option<&str> {
        let place = |end: u64| usize::try_from(end).ok();
        let end = place(*self.ends.get(number)?)?;
        let start = match number.checked_sub(1) {
            Some(before) => place(*self.ends.get(before)?)?,
            None => 0,
        };
        self.text.get(start..end)
    }
}

/// The classes and images of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Listing {
    pub(super) classes: Vec<String>,
    /// Paths below the class's directory, by class.
    pub(super) images: Vec<Paths>,
    pub(super) left_out: LeftOut,
}

impl Listing {
    /// Renumbers the images by the classes of the training split.
    pub(super) fn numbered_as(self, classes: &[String], root: &Path) -> Result<Self, DataError> {
        let mut images = vec![Paths::default(); classes.len()];
        for (name, found) in self.classes.iter().zip(self.images) {
            match classes.iter().position(|class| class == name) {
                Some(number) => images[number] = found,
                None => {
                    return Err(DataError::invalid(
                        &root.join(name),
                        "is not a class of the training split",
                    ));
                }
            }
        }
        Ok(Self {
            classes: classes.to_vec(),
            images,
            left_out: self.left_out,
        })
    }
}

/// A listing, and the directories from which it was made. Adding a file to a directory, or removing
/// one, changes the time of that directory only.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) listing: Listing,
    /// Path below the root and time of the last change, for every directory below the root.
    pub(super) directories: Vec<(String, u128)>,
}

impl Kept {
    /// Lists a directory of classes.
    pub(super) fn of(root: &Path) -> Result<Self, DataError> {
        let (classes, mut left_out) = classes(root)?;
        let (mut images, mut directories) = (Vec::new(), Vec::new());
        for class in &classes {
            let path = root.join(class);
            let real = std::fs::canonicalize(&path).map_err(DataError::io(&path))?;
            let mut walk = Walk {
                class: path,
                ..Walk::default()
            };
            walk.list("", real)?;
            walk.follow_links()?;
            if walk.images.is_empty() {
                let others = walk.left_out.files();
                let reason = format!("holds no .jpg, .jpeg or .png file{others}");
                return Err(DataError::invalid(&walk.class, reason));
            }
            images.push(Paths::sorted(walk.images));
            let found = walk.directories.into_iter();
            directories.extend(found.map(|(path, time)| (format!("{class}/{path}"), time)));
            left_out.join(&walk.left_out);
        }
        Ok(Self {
            listing: Listing {
                classes,
                images,
                left_out,
            },
            directories,
        })
    }

    /// Whether no directory has changed since. A class that was added or removed changes the root,
    /// whose time is in the cache's stamp.
    pub(super) fn is_current(&self, root: &Path) -> bool {
        self.directories
            .iter()
            .all(|(path, time)| modified(&root.join(path)).is_ok_and(|now| now == *time))
    }
}

/// Returns the sorted names of the classes: the directories of a directory, and links to
/// directories. Other entries are left out.
fn classes(root: &Path) -> Result<(Vec<String>, LeftOut), DataError> {
    let (mut names, mut left_out) = (Vec::new(), LeftOut::default());
    for entry in std::fs::read_dir(root).map_err(DataError::io(root))? {
        let entry = entry.map_err(DataError::io(root))?;
        let name = entry.file_name();
        // A volume of a ConfigMap has hidden directories.
        if is_hidden(&name) {
            continue;
        }
        if entry.path().is_dir() {
            names.push(utf8(&entry)?);
        } else {
            left_out.add(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok((names, left_out))
}

/// The images and directories of a class. All paths are below the class's directory.
#[derive(Default)]
struct Walk {
    class: PathBuf,
    images: Vec<String>,
    directories: Vec<(String, u128)>,
    left_out: LeftOut,
    /// Links to directories that must be followed.
    links: BTreeSet<String>,
    /// Real paths of the directories that were listed. A link to one of them, such as
    /// a loop, adds nothing.
    listed: HashSet<PathBuf>,
}

impl Walk {
    /// Lists a directory and its subdirectories, and records links to directories. `below` is its
    /// path, which ends with `/` or is empty; `real` is its path without links.
    fn list(&mut self, below: &str, real: PathBuf) -> Result<(), DataError> {
        if self.listed.contains(&real) {
            return Ok(());
        }
        let directory = self.class.join(below);
        // Read the time before the directory: a file that is added meanwhile makes the listing
        // outdated.
        let time = modified(&directory).map_err(DataError::io(&directory))?;
        self.directories.push((below.to_owned(), time));
        let mut inner = Vec::new();
        for entry in std::fs::read_dir(&directory).map_err(DataError::io(&directory))? {
            let entry = entry.map_err(DataError::io(&directory))?;
            let kind = entry.file_type().map_err(DataError::io(&directory))?;
            let name = entry.file_name();
            if is_hidden(&name) {
                continue;
            }
            if kind.is_dir() {
                inner.push(utf8(&entry)?);
            } else if is_image(&name) {
                self.images.push(format!("{below}{}", utf8(&entry)?));
            } else if kind.is_symlink() && entry.path().is_dir() {
                self.links.insert(format!("{below}{}", utf8(&entry)?));
            } else {
                // The name is only shown, so it need not be UTF-8.
                let name = name.to_string_lossy();
                self.left_out.add(format!("{below}{name}"));
            }
        }
        for name in inner {
            self.list(&format!("{below}{name}/"), real.join(name))?;
        }
        self.listed.insert(real);
        Ok(())
    }

    /// Lists the targets of links, after the directories themselves and in the order of names: the
    /// path of an image must not depend on the order in which a volume lists its directories.
    fn follow_links(&mut self) -> Result<(), DataError> {
        while let Some(link) = self.links.pop_first() {
            let path = self.class.join(&link);
            let target = std::fs::canonicalize(&path).map_err(DataError::io(&path))?;
            self.list(&format!("{link}/"), target)?;
        }
        Ok(())
    }
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".") || NOT_DATA.iter().any(|known| name == *known)
}

fn is_image(name: &OsStr) -> bool {
    let ending = Path::new(name).extension();
    let is_known = |ending: &OsStr| {
        ENDINGS
            .iter()
            .any(|known| ending.eq_ignore_ascii_case(known))
    };
    ending.is_some_and(is_known)
}

/// Time of a directory's last change, in nanoseconds since 1970.
fn modified(directory: &Path) -> std::io::Result<u128> {
    let modified = std::fs::metadata(directory)?.modified()?;
    let since = modified.duration_since(std::time::UNIX_EPOCH);
    Ok(since.unwrap_or_default().as_nanos())
}

fn utf8(entry: &DirEntry) -> Result<String, DataError> {
    let name = entry.file_name().into_string();
    name.map_err(|_| DataError::invalid(&entry.path(), "the name is not UTF-8"))
}
