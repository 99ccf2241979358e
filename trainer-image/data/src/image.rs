//! Images: decoding, resizing, and the transforms of training and evaluation.

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
    pub width: u32,
    pub height: u32,
    /// Number of channels: 1 (gray) or 3 (color).
    pub num_channels: u32,
}

impl Size {
    /// Size of such an image in bytes.
    #[must_use]
    pub const fn num_bytes(&self) -> usize {
        self.width as usize * self.height as usize * self.num_channels as usize
    }
}

/// A part of an image, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rectangle {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

/// Resizes like Pillow: a triangle filter whose support grows with the reduction, so that fine
/// details are averaged instead of aliased.
#[derive(Debug, Default)]
pub struct Resizer {
    inner: fast_image_resize::Resizer,
}

impl Resizer {
    /// Resizes a part of an image `[H, W, C]` to another image.
    ///
    /// # Errors
    /// Returns an error if the part is not inside the image, or if a buffer does not
    /// have the image's size.
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
            other => return Err(format!("cannot resize an image with {other} channels")),
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
