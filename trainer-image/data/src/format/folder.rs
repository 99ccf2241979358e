//! Image folders: a directory per class with JPEG and PNG files, like torchvision's `ImageFolder`.
//! Classes are numbered in the order of their names, images in the order of class and path. Hidden
//! files and directories are left out at every level. Links to directories are followed.

use std::path::{Path, PathBuf};

use crate::cache::Cache;
use crate::error::{DataError, Place};
use crate::image::{Record, Records};

mod listing;
#[cfg(test)]
mod tests;

use listing::{Kept, Listing};

/// Maximum size in bytes of a file that is read.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The images of a directory.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    listing: Listing,
    /// Number of the first image of each class, and the number of images at the end.
    starts: Vec<usize>,
}

impl Folder {
    /// Lists a directory. `classes` are those of the training split; then the classes of this split
    /// get the same numbers.
    ///
    /// # Errors
    /// Returns an error if a directory cannot be read, if a class has no image, or if the training
    /// split lacks a class of this split.
    pub fn open(root: &Path, classes: Option<&[String]>, cache: &Cache) -> Result<Self, DataError> {
        let is_current = |kept: &Kept| kept.is_current(root);
        let build = || Kept::of(root);
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
            let reason = format!(
                "holds no image: it needs a directory per class with .jpg, .jpeg or .png files{}",
                listing.left_out.files()
            );
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

    fn notes(&self) -> String {
        let names = match self.listing.classes.as_slice() {
            [first, _, _, .., last] => format!("{first} … {last}"),
            few => few.join(", "),
        };
        format!(" ({names}){}", self.listing.left_out.files())
    }

    fn locate(&self, number: u64) -> (PathBuf, Place) {
        (
            self.path(number)
                .map_or_else(|| self.root.clone(), |(_, path)| path),
            Place::File,
        )
    }
}
