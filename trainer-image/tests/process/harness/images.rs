//! Image data sets of any size.

use tempfile::TempDir;

/// IDX files with `num` gray images of noise, `side` × `side` pixels and of ten classes. Both
/// splits are the same.
pub(crate) fn images_of(num: u32, side: u32) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let header = |kind: u32, sizes: &[u32]| -> Vec<u8> {
        let words = std::iter::once(&kind).chain(sizes);
        words.flat_map(|word| word.to_be_bytes()).collect()
    };
    let pixels = (0..num * side * side)
        .map(|at| u8::try_from(at.wrapping_mul(2_654_435_761) >> 24).unwrap());
    let labels = (0..num).map(|at| u8::try_from(at % 10).unwrap());
    let mut images = header(0x803, &[num, side, side]);
    images.extend(pixels);
    let mut classes = header(0x801, &[num]);
    classes.extend(labels);
    for split in ["train", "t10k"] {
        let path = |name: &str| directory.path().join(format!("{split}-{name}-ubyte"));
        std::fs::write(path("images-idx3"), &images).unwrap();
        std::fs::write(path("labels-idx1"), &classes).unwrap();
    }
    directory
}
