//! Images: decoding, resizing, and what training and evaluation do with them.

use fast_image_resize::images::{CroppedImage, Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions};

pub mod decode;
pub mod records;
pub mod transform;

pub use records::{Images, Record, Records};
pub use transform::{Output, Transform};

/// Width and height in pixels, and the number of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// 1 or 3.
    pub num_channels: u32,
}

impl Size {
    /// Size of such an image in bytes.
    #[must_use]
    pub const fn num_bytes(&self) -> usize {
        self.width as usize * self.height as usize * self.num_channels as usize
    }
}

/// A part of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rectangle {
    /// First column.
    pub left: u32,
    /// First row.
    pub top: u32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

/// Resizes as Pillow does: a triangle filter whose support grows with the reduction, so that what is too fine
/// for the new size is averaged away and not aliased.
#[derive(Debug, Default)]
pub struct Resizer {
    inner: fast_image_resize::Resizer,
}

impl Resizer {
    /// Resizes a part of an image `[H, W, C]` to another image.
    ///
    /// # Errors
    /// The part does not lie in the image, or a buffer does not have the image's size.
    pub fn resize(
        &mut self,
        from: &[u8],
        size: Size,
        part: Rectangle,
        to: &mut [u8],
        to_size: Size,
    ) -> Result<(), String> {
        let kind = match size.num_channels {
            1 => PixelType::U8,
            3 => PixelType::U8x3,
            other => return Err(format!("an image of {other} channels cannot be resized")),
        };
        let from = ImageRef::new(size.width, size.height, from, kind).map_err(text)?;
        let Rectangle {
            left,
            top,
            width,
            height,
        } = part;
        let part = CroppedImage::new(&from, left, top, width, height).map_err(text)?;
        let mut to = Image::from_slice_u8(to_size.width, to_size.height, to, kind).map_err(text)?;
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .use_alpha(false);
        self.inner.resize(&part, &mut to, &options).map_err(text)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
