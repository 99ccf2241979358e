//! IDX files as MNIST is published (`LeCun`, Cortes and Burges, 1998), plain or gzipped.
//!
//! A file is: two zero bytes, the type (8: unsigned byte), the number of dimensions, each
//! dimension as 32-bit big-endian number, then the values. Nothing of it is believed: every
//! disagreement is an error with the path and the reason, before any step is taken.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::{Dataset, Shape, Split};
use crate::failure::Failure;

const UNSIGNED_BYTE: u8 = 8;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// One file: its dimensions and values.
#[derive(Debug, PartialEq, Eq)]
struct Array<const D: usize> {
    dimensions: [usize; D],
    values: Vec<u8>,
}

/// Images and labels of one split, which belong together.
struct Pair {
    images_path: PathBuf,
    labels_path: PathBuf,
    images: Array<3>,
    labels: Array<1>,
}

/// Reads `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and
/// `t10k-labels-idx1-ubyte`, each plain or with `.gz`. There are as many classes as the highest
/// training label says.
///
/// # Errors
/// [`Failure::Data`] names the file and what is wrong with it.
pub fn open(directory: &Path) -> Result<Dataset, Failure> {
    let train = Pair::open(directory, "train")?;
    let test = Pair::open(directory, "t10k")?;
    let [_, height, width] = train.images.dimensions;
    let [_, test_height, test_width] = test.images.dimensions;
    if (height, width) != (test_height, test_width) {
        return Err(Failure::data(
            &test.images_path,
            format!(
                "images are {test_height}x{test_width}, but the training images are {height}x{width}"
            ),
        ));
    }
    let highest = train.labels.values.iter().copied().max().unwrap_or(0);
    if highest == 0 {
        return Err(Failure::data(
            &train.labels_path,
            "all labels are 0; training needs at least two classes",
        ));
    }
    if let Some(index) = test.labels.values.iter().position(|label| *label > highest) {
        return Err(Failure::data(
            &test.labels_path,
            format!(
                "label {} of sample {index} is out of range; the training labels are 0 to {highest}",
                test.labels.values[index]
            ),
        ));
    }
    let shape = Shape {
        num_channels: 1,
        height: signed(height, &train.images_path)?,
        width: signed(width, &train.images_path)?,
        num_classes: i64::from(highest) + 1,
    };
    Ok(Dataset {
        train: train.into_split(&shape)?,
        test: test.into_split(&shape)?,
        shape,
    })
}

impl Pair {
    fn open(directory: &Path, prefix: &str) -> Result<Self, Failure> {
        let images_path = find(directory, &format!("{prefix}-images-idx3-ubyte"))?;
        let labels_path = find(directory, &format!("{prefix}-labels-idx1-ubyte"))?;
        let images: Array<3> = read(&images_path)?;
        let labels: Array<1> = read(&labels_path)?;
        let ([num_images, height, width], [num_labels]) = (images.dimensions, labels.dimensions);
        if num_images == 0 || height == 0 || width == 0 {
            return Err(Failure::data(&images_path, "there are no images in it"));
        }
        if num_images != num_labels {
            return Err(Failure::data(
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

    fn into_split(self, shape: &Shape) -> Result<Split, Failure> {
        Ok(Split::new(&self.images.values, &self.labels.values, shape)?)
    }
}

fn signed(size: usize, path: &Path) -> Result<i64, Failure> {
    i64::try_from(size).map_err(|_| Failure::data(path, "images are too large"))
}

/// The plain file if there is one, else the gzipped one.
fn find(directory: &Path, name: &str) -> Result<PathBuf, Failure> {
    let plain = directory.join(name);
    let packed = directory.join(format!("{name}.gz"));
    for path in [&plain, &packed] {
        if path.try_exists().map_err(Failure::io(path))? {
            return Ok(path.clone());
        }
    }
    Err(Failure::data(
        &plain,
        "is missing, and so is the same with .gz",
    ))
}

fn read<const D: usize>(path: &Path) -> Result<Array<D>, Failure> {
    // What is wrong with the content is the data's fault; the rest may be better a moment later.
    let refuse = |error: std::io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => Failure::data(path, "is truncated"),
        ErrorKind::InvalidData | ErrorKind::InvalidInput => {
            Failure::data(path, format!("cannot be read: {error}"))
        }
        _ => Failure::io(path)(error),
    };
    let mut file = BufReader::new(File::open(path).map_err(refuse)?);
    // Told by content, not by name: a ConfigMap or a download may have renamed it.
    let packed = std::io::BufRead::fill_buf(&mut file)
        .map_err(refuse)?
        .starts_with(&GZIP_MAGIC);
    if packed {
        parse(MultiGzDecoder::new(file)).map_err(refuse)?
    } else {
        parse(file).map_err(refuse)?
    }
    .map_err(|reason| Failure::data(path, reason))
}

/// The array that a reader holds, or what is wrong with it. Reads no more than the header
/// promises and one byte, so that a small file cannot fill the memory.
fn parse<const D: usize>(mut reader: impl Read) -> std::io::Result<Result<Array<D>, String>> {
    let mut magic = [0_u8; 4];
    reader.read_exact(&mut magic)?;
    let [zero, zero_too, kind, num_dimensions] = magic;
    if (zero, zero_too) != (0, 0) {
        return Ok(Err(format!(
            "is no IDX file: it begins with {}",
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
        // Three 32-bit numbers can exceed 64 bits; what does is refused as truncated below.
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
