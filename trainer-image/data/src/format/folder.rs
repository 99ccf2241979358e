//! Image folders: a directory per class with JPEG and PNG files, as torchvision's `ImageFolder`. Classes are
//! numbered in the order of their names, images in the order of class and path.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::error::{DataError, Place};
use crate::image::{Record, Records};

const ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];
/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The images of a directory.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    listing: Listing,
    /// Number of the first image of each class, and the number of images at the end.
    starts: Vec<usize>,
}

/// What a directory holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Listing {
    classes: Vec<String>,
    /// Paths below the class's directory, by class.
    images: Vec<Vec<String>>,
}

impl Folder {
    /// Lists a directory. `classes` are those of the training split: then another's are numbered as they are.
    ///
    /// # Errors
    /// A directory cannot be read, a class has no image, or there are classes that the training split does not have.
    pub fn open(root: &Path, classes: Option<&[String]>, cache: &Cache) -> Result<Self, DataError> {
        let names = directories(root)?;
        let is_current = |kept: &Kept| kept.is_current(root);
        let build = || Kept::of(root, names);
        let kept = cache.get_if(root, "folder-index", b"", is_current, build)?;
        let mut listing = kept.listing;
        if let Some(classes) = classes {
            listing = listing.numbered_as(classes, root)?;
        }
        let mut starts = vec![0];
        for images in &listing.images {
            starts.push(starts.last().unwrap_or(&0) + images.len());
        }
        if starts.last() == Some(&0) {
            let reason =
                "holds no image: it needs a directory per class with .jpg, .jpeg or .png files";
            return Err(DataError::invalid(root, reason));
        }
        Ok(Self {
            root: root.to_owned(),
            listing,
            starts,
        })
    }

    /// Names of the classes, by number.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.listing.classes
    }

    fn path(&self, number: u64) -> Option<(usize, PathBuf)> {
        let number = usize::try_from(number).ok()?;
        let class = self
            .starts
            .partition_point(|start| *start <= number)
            .checked_sub(1)?;
        let image = self
            .listing
            .images
            .get(class)?
            .get(number - self.starts[class])?;
        Some((
            class,
            self.root.join(&self.listing.classes[class]).join(image),
        ))
    }
}

/// A listing, and the directories that it was made from. A file that is added to a directory or removed from it
/// changes the time of that directory alone.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    listing: Listing,
    /// Path below the root and time of the last change, of every directory below the root.
    directories: Vec<(String, u128)>,
}

impl Kept {
    fn of(root: &Path, classes: Vec<String>) -> Result<Self, DataError> {
        let (mut images, mut directories) = (Vec::new(), Vec::new());
        for class in &classes {
            let mut walk = Walk {
                class: root.join(class),
                images: Vec::new(),
                directories: Vec::new(),
            };
            walk.list("")?;
            if walk.images.is_empty() {
                return Err(DataError::invalid(
                    &walk.class,
                    "holds no .jpg, .jpeg or .png file",
                ));
            }
            walk.images.sort();
            images.push(walk.images);
            let found = walk.directories.into_iter();
            directories.extend(found.map(|(path, time)| (format!("{class}/{path}"), time)));
        }
        Ok(Self {
            listing: Listing { classes, images },
            directories,
        })
    }

    /// Whether no directory has changed since. Classes that were added or removed change the root, whose time is in
    /// the cache's stamp.
    fn is_current(&self, root: &Path) -> bool {
        self.directories
            .iter()
            .all(|(path, time)| modified(&root.join(path)).is_ok_and(|now| now == *time))
    }
}

impl Listing {
    fn numbered_as(self, classes: &[String], root: &Path) -> Result<Self, DataError> {
        let mut images = vec![Vec::new(); classes.len()];
        for (name, found) in self.classes.iter().zip(self.images) {
            match classes.iter().position(|class| class == name) {
                Some(number) => images[number] = found,
                None => {
                    return Err(DataError::invalid(
                        &root.join(name),
                        "is no class of the training split",
                    ));
                }
            }
        }
        Ok(Self {
            classes: classes.to_vec(),
            images,
        })
    }
}

/// Names of the directories in a directory, sorted.
fn directories(root: &Path) -> Result<Vec<String>, DataError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root).map_err(DataError::io(root))? {
        let entry = entry.map_err(DataError::io(root))?;
        let name = name(&entry)?;
        // A ConfigMap's volume has hidden directories; links to directories count.
        if !name.starts_with('.') && entry.path().is_dir() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The images and directories of a class. All paths are below the class's directory.
struct Walk {
    class: PathBuf,
    images: Vec<String>,
    directories: Vec<(String, u128)>,
}

impl Walk {
    /// Lists a directory and those in it. `below` is its path, which ends with `/` or is empty.
    fn list(&mut self, below: &str) -> Result<(), DataError> {
        let directory = self.class.join(below);
        // Before the directory is read: a file that is added meanwhile makes the listing stale.
        let time = modified(&directory).map_err(DataError::io(&directory))?;
        self.directories.push((below.to_owned(), time));
        for entry in std::fs::read_dir(&directory).map_err(DataError::io(&directory))? {
            let entry = entry.map_err(DataError::io(&directory))?;
            let name = name(&entry)?;
            let kind = entry.file_type().map_err(DataError::io(&directory))?;
            // Links to directories are not followed, so that a loop does not matter.
            if kind.is_dir() {
                self.list(&format!("{below}{name}/"))?;
            } else if is_image(&name) {
                self.images.push(format!("{below}{name}"));
            }
        }
        Ok(())
    }
}

fn is_image(name: &str) -> bool {
    let ending = Path::new(name)
        .extension()
        .and_then(|ending| ending.to_str());
    let is_known = |ending: &str| {
        ENDINGS
            .iter()
            .any(|known| ending.eq_ignore_ascii_case(known))
    };
    ending.is_some_and(is_known) && !name.starts_with('.')
}

/// When a directory was last changed, in nanoseconds since 1970.
fn modified(directory: &Path) -> std::io::Result<u128> {
    let modified = std::fs::metadata(directory)?.modified()?;
    let since = modified.duration_since(std::time::UNIX_EPOCH);
    Ok(since.unwrap_or_default().as_nanos())
}

fn name(entry: &std::fs::DirEntry) -> Result<String, DataError> {
    let name = entry.file_name().into_string();
    name.map_err(|_| DataError::invalid(&entry.path(), "the name is not UTF-8"))
}

impl Records for Folder {
    fn num_records(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0) as u64
    }

    fn num_classes(&self) -> u32 {
        u32::try_from(self.listing.classes.len()).unwrap_or(u32::MAX)
    }

    fn read(&self, number: u64, into: &mut Vec<u8>) -> Result<Record, DataError> {
        use std::io::Read as _;
        let Some((class, path)) = self.path(number) else {
            return Err(DataError::NoSuchSample {
                sample: number,
                num_samples: self.num_records(),
            });
        };
        into.clear();
        let file = std::fs::File::open(&path).map_err(DataError::io(&path))?;
        file.take(MAX_FILE_BYTES)
            .read_to_end(into)
            .map_err(DataError::io(&path))?;
        Ok(Record::Encoded {
            label: i64::try_from(class).unwrap_or(i64::MAX),
        })
    }

    fn locate(&self, number: u64) -> (PathBuf, Place) {
        (
            self.path(number)
                .map_or_else(|| self.root.clone(), |(_, path)| path),
            Place::File,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of images within a directory of its own, beside which the list is kept.
    struct Images(tempfile::TempDir);

    impl Images {
        fn path(&self) -> PathBuf {
            self.0.path().join("images")
        }
    }

    fn folder(images: &[&str]) -> Images {
        let directory = Images(tempfile::tempdir().unwrap());
        std::fs::create_dir(directory.path()).unwrap();
        for image in images {
            let path = directory.path().join(image);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, image).unwrap();
        }
        directory
    }

    fn listed(folder: &Folder) -> Vec<(i64, String)> {
        let read = |number| {
            let mut bytes = Vec::new();
            let Ok(Record::Encoded { label }) = folder.read(number, &mut bytes) else {
                panic!("a file holds an encoded image");
            };
            (label, String::from_utf8(bytes).unwrap())
        };
        (0..folder.num_records()).map(read).collect()
    }

    #[test]
    fn classes_and_images_are_numbered_by_name() {
        let directory = folder(&[
            "dog/b.JPG",
            "dog/a.png",
            "cat/sub/x.jpeg",
            "cat/y.jpg",
            "cat/notes.txt",
            ".hidden/z.jpg",
        ]);
        let folder = Folder::open(&directory.path(), None, &Cache::default()).unwrap();
        assert_eq!(folder.classes(), ["cat", "dog"]);
        let expected = [
            (0, "cat/sub/x.jpeg"),
            (0, "cat/y.jpg"),
            (1, "dog/a.png"),
            (1, "dog/b.JPG"),
        ];
        assert_eq!(
            listed(&folder),
            expected.map(|(label, name)| (label, name.to_owned()))
        );
    }

    #[test]
    fn a_new_or_removed_image_is_seen_in_every_directory_although_the_list_was_kept() {
        for changed in ["b", "b/nested", "b/nested/deep"] {
            let directory = folder(&["a/1.jpg", "b/nested/deep/1.jpg"]);
            let num_images = || {
                let found = Folder::open(&directory.path(), None, &Cache::default());
                found.unwrap().num_records()
            };
            let changed = directory.path().join(changed);
            // A time of long ago, because two changes within one tick of the clock have the same.
            let make_old = || {
                let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
                let opened = std::fs::File::open(&changed).unwrap();
                opened.set_modified(time).unwrap();
            };
            make_old();
            assert_eq!((num_images(), num_images()), (2, 2));
            std::fs::write(changed.join("2.jpg"), "2.jpg").unwrap();
            assert_eq!(num_images(), 3, "{}", changed.display());
            make_old();
            assert_eq!(num_images(), 3);
            std::fs::remove_file(changed.join("2.jpg")).unwrap();
            assert_eq!(num_images(), 2, "{}", changed.display());
        }
    }

    #[test]
    fn a_list_is_kept_as_long_as_no_directory_changes() {
        let directory = folder(&["a/nested/1.jpg"]);
        let kept = Kept::of(&directory.path(), vec!["a".to_owned()]).unwrap();
        assert!(kept.is_current(&directory.path()));
        let paths: Vec<_> = kept.directories.iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["a/", "a/nested/"]);
        std::fs::remove_dir_all(directory.path().join("a/nested")).unwrap();
        assert!(!kept.is_current(&directory.path()));
    }

    #[test]
    fn a_validation_split_has_the_training_splits_numbers() {
        let directory = folder(&["dog/1.jpg"]);
        let classes = ["cat".to_owned(), "dog".to_owned()];
        let found = Folder::open(&directory.path(), Some(&classes), &Cache::default()).unwrap();
        assert_eq!(listed(&found), [(1, "dog/1.jpg".to_owned())]);
        let text = Folder::open(&directory.path(), Some(&classes[..1]), &Cache::default())
            .unwrap_err()
            .to_string();
        assert!(text.contains("dog") && text.contains("no class"), "{text}");
    }

    #[test]
    fn a_directory_without_classes_or_a_class_without_images_is_named() {
        let text = Folder::open(&folder(&[]).path(), None, &Cache::default())
            .unwrap_err()
            .to_string();
        assert!(text.contains("directory per class"), "{text}");
        let directory = folder(&["a/1.jpg", "b/notes.txt"]);
        let text = Folder::open(&directory.path(), None, &Cache::default())
            .unwrap_err()
            .to_string();
        assert!(
            text.ends_with("b: holds no .jpg, .jpeg or .png file"),
            "{text}"
        );
    }
}
