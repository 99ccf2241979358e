//! IDX files, the format in which MNIST is published (`LeCun`, Cortes and Burges, 1998), plain or
//! gzipped.
//!
//! A file contains two zero bytes, the type (8: unsigned byte), the number of dimensions, each
//! dimension as a 32-bit big-endian number, then the values. Every inconsistency is an error with
//! the path and the reason before the first step. The files are small, so all images are kept in
//! memory.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use crate::error::{DataError, Place};
use crate::image::{Record, Records, Size};

const UNSIGNED_BYTE: u8 = 8;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// One file: its dimensions and values.
#[derive(Debug, PartialEq, Eq)]
struct Array<const D: usize> {
    dimensions: [usize; D],
    values: Vec<u8>,
}

/// The images of one split.
#[derive(Debug)]
pub struct Idx {
    path: PathBuf,
    images: Vec<u8>,
    labels: Vec<u8>,
    size: Size,
    num_classes: u32,
}

/// Reads `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and
/// `t10k-labels-idx1-ubyte`, each plain or with `.gz`, and returns the training and the test split.
/// The highest training label determines the number of classes.
///
/// # Errors
/// Returns an error that names the file.
pub fn open(directory: &Path) -> Result<(Idx, Idx), DataError> {
    let train = Pair::open(directory, "train")?;
    let test = Pair::open(directory, "t10k")?;
    let [_, height, width] = train.images.dimensions;
    let [_, test_height, test_width] = test.images.dimensions;
    if (height, width) != (test_height, test_width) {
        let reason = format!(
            "images are {test_height}x{test_width}, but the training images are {height}x{width}"
        );
        return Err(DataError::invalid(&test.images_path, reason));
    }
    let highest = train.labels.values.iter().copied().max().unwrap_or(0);
    if highest == 0 {
        let reason = "all labels are 0; training needs at least two classes";
        return Err(DataError::invalid(&train.labels_path, reason));
    }
    if let Some(index) = test.labels.values.iter().position(|label| *label > highest) {
        let label = test.labels.values[index];
        let reason = format!(
            "label {label} of sample {index} is out of range; the training labels are 0 to {highest}"
        );
        return Err(DataError::invalid(&test.labels_path, reason));
    }
    let num_classes = u32::from(highest) + 1;
    Ok((
        train.into_split(num_classes)?,
        test.into_split(num_classes)?,
    ))
}

impl Idx {
    /// Returns the size of the images.
    #[must_use]
    pub const fn size(&self) -> Size {
        self.size
    }
}

impl Records for Idx {
    fn num_records(&self) -> u64 {
        self.labels.len() as u64
    }

    fn num_classes(&self) -> u32 {
        self.num_classes
    }

    fn read(&self, number: u64, into: &mut Vec<u8>) -> Result<Record, DataError> {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let image = self.images.chunks_exact(self.size.num_bytes()).nth(at);
        let (Some(image), Some(label)) = (image, self.labels.get(at)) else {
            return Err(DataError::NoSuchSample {
                sample: number,
                num_samples: self.num_records(),
            });
        };
        into.clear();
        into.extend_from_slice(image);
        Ok(Record::Raw {
            label: i64::from(*label),
            size: self.size,
        })
    }

    fn locate(&self, number: u64) -> (PathBuf, Place) {
        (self.path.clone(), Place::Record(number))
    }
}

/// Images and labels of one split, which belong together.
struct Pair {
    images_path: PathBuf,
    labels_path: PathBuf,
    images: Array<3>,
    labels: Array<1>,
}

impl Pair {
    fn open(directory: &Path, prefix: &str) -> Result<Self, DataError> {
        let images_path = find(directory, &format!("{prefix}-images-idx3-ubyte"))?;
        let labels_path = find(directory, &format!("{prefix}-labels-idx1-ubyte"))?;
        let images: Array<3> = read(&images_path)?;
        let labels: Array<1> = read(&labels_path)?;
        let ([num_images, height, width], [num_labels]) = (images.dimensions, labels.dimensions);
        if num_images == 0 || height == 0 || width == 0 {
            return Err(DataError::invalid(
                &images_path,
                "there are no images in it",
            ));
        }
        if num_images != num_labels {
            return Err(DataError::invalid(
                &labels_path,
                format!(
                    "{num_labels} labels for the {num_images} images of {}",
                    images_path.display()
                ),
            ));
        }
        Ok(Self {
            images_path,
            labels_path,
            images,
            labels,
        })
    }

    fn into_split(self, num_classes: u32) -> Result<Idx, DataError> {
        let [_, height, width] = self.images.dimensions;
        let small = |edge: usize| {
            let edge = u32::try_from(edge).ok().filter(|edge| *edge <= 1 << 15);
            edge.ok_or_else(|| DataError::invalid(&self.images_path, "images are too large"))
        };
        let size = Size {
            width: small(width)?,
            height: small(height)?,
            num_channels: 1,
        };
        Ok(Idx {
            path: self.images_path,
            images: self.images.values,
            labels: self.labels.values,
            size,
            num_classes,
        })
    }
}

/// Returns the plain file if it exists, otherwise the gzipped one.
fn find(directory: &Path, name: &str) -> Result<PathBuf, DataError> {
    let plain = directory.join(name);
    let packed = directory.join(format!("{name}.gz"));
    for path in [&plain, &packed] {
        if path.try_exists().map_err(DataError::io(path))? {
            return Ok(path.clone());
        }
    }
    Err(DataError::invalid(
        &plain,
        "is missing, and so is the same with .gz",
    ))
}

fn read<const D: usize>(path: &Path) -> Result<Array<D>, DataError> {
    // Wrong content is an error of the data; other errors may be temporary.
    let refuse = |error: std::io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => DataError::invalid(path, "is truncated"),
        ErrorKind::InvalidData | ErrorKind::InvalidInput => {
            DataError::invalid(path, format!("cannot be read: {error}"))
        }
        _ => DataError::io(path)(error),
    };
    let mut file = BufReader::new(File::open(path).map_err(refuse)?);
    // The content decides whether a file is gzipped, because a ConfigMap or a download may have
    // renamed it.
    let packed = std::io::BufRead::fill_buf(&mut file)
        .map_err(refuse)?
        .starts_with(&GZIP_MAGIC);
    if packed {
        parse(MultiGzDecoder::new(file)).map_err(refuse)?
    } else {
        parse(file).map_err(refuse)?
    }
    .map_err(|reason| DataError::invalid(path, reason))
}

/// Parses the array of a reader, or returns what is wrong with it. It reads at most one byte more
/// than the header promises, so that a small file cannot fill the memory.
fn parse<const D: usize>(mut reader: impl Read) -> std::io::Result<Result<Array<D>, String>> {
    let mut magic = [0_u8; 4];
    reader.read_exact(&mut magic)?;
    let [zero, zero_too, kind, num_dimensions] = magic;
    if (zero, zero_too) != (0, 0) {
        return Ok(Err(format!(
            "is not an IDX file: it begins with {}",
            hex(magic)
        )));
    }
    if kind != UNSIGNED_BYTE || usize::from(num_dimensions) != D {
        return Ok(Err(format!(
            "has the IDX magic {}; expected unsigned bytes in {D} dimensions",
            hex(magic)
        )));
    }
    let mut dimensions = [0_usize; D];
    let mut num_values: u64 = 1;
    for dimension in &mut dimensions {
        let mut size = [0_u8; 4];
        reader.read_exact(&mut size)?;
        let size = u32::from_be_bytes(size);
        *dimension = size as usize;
        // The product of three 32-bit numbers can exceed 64 bits. A saturated product is refused as
        // truncated below.
        num_values = num_values.saturating_mul(u64::from(size));
    }
    let mut values = Vec::new();
    let num_found = reader
        .take(num_values.saturating_add(1))
        .read_to_end(&mut values)? as u64;
    Ok(match num_found.cmp(&num_values) {
        std::cmp::Ordering::Less => Err(format!(
            "is truncated: its header promises {num_values} values, it has {num_found}"
        )),
        std::cmp::Ordering::Greater => Err(format!(
            "has more than the {num_values} values that its header promises"
        )),
        std::cmp::Ordering::Equal => Ok(Array { dimensions, values }),
    })
}

fn hex(bytes: [u8; 4]) -> String {
    format!("0x{:08x}", u32::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests;
