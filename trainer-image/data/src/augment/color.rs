//! Operations on pixel values. A result depends on the value and on sums over the image, never on
//! the place.

use crate::image::Size;

/// An operation on values. A factor of 1 changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Color {
    /// Blends the image with black.
    Brightness(f64),
    /// Blends the image with its gray version.
    Saturation(f64),
    /// Blends the image with its mean gray.
    Contrast(f64),
    /// Keeps only the highest bits.
    Posterize {
        /// Number of bits that are kept.
        num_bits: u32,
    },
    /// Inverts values from a threshold on.
    Solarize {
        /// Lowest value that is inverted.
        threshold: u8,
    },
    /// Stretches the values of each channel to 0 to 255.
    AutoContrast,
}

impl Color {
    /// Applies the operation to an image.
    pub fn apply(self, pixels: &mut [u8], size: Size) {
        match self {
            Self::Brightness(factor) => {
                each(pixels, |value| blended(f64::from(value), 0.0, factor))
            }
            Self::Saturation(factor) => {
                for pixel in pixels
                    .as_chunks_mut::<3>()
                    .0
                    .iter_mut()
                    .filter(|_| size.num_channels == 3)
                {
                    let gray = gray(*pixel);
                    *pixel = pixel.map(|value| blended(f64::from(value), gray, factor));
                }
            }
            Self::Contrast(factor) => {
                let mean = mean_gray(pixels, size);
                each(pixels, |value| blended(f64::from(value), mean, factor));
            }
            Self::Posterize { num_bits } => {
                let mask = !(0xff_u8.checked_shr(num_bits).unwrap_or(0));
                each(pixels, |value| value & mask);
            }
            Self::Solarize { threshold } => each(pixels, |value| {
                if value >= threshold {
                    255 - value
                } else {
                    value
                }
            }),
            Self::AutoContrast => (0..size.num_channels as usize)
                .for_each(|channel| stretch(pixels, channel, size.num_channels as usize)),
        }
    }
}

/// Applies a function of one value by a table.
fn each(pixels: &mut [u8], map: impl Fn(u8) -> u8) {
    let table: [u8; 256] = std::array::from_fn(|value| map(u8::try_from(value).unwrap_or(u8::MAX)));
    for value in pixels {
        *value = table[usize::from(*value)];
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the value is clamped"
)]
fn blended(value: f64, other: f64, factor: f64) -> u8 {
    (factor * value + (1.0 - factor) * other).clamp(0.0, 255.0) as u8
}

/// Luma as defined by ITU-R BT.601.
fn gray(pixel: [u8; 3]) -> f64 {
    let [red, green, blue] = pixel.map(f64::from);
    (0.299 * red + 0.587 * green + 0.114 * blue).round()
}

fn mean_gray(pixels: &[u8], size: Size) -> f64 {
    let num_pixels = f64::from(size.width) * f64::from(size.height);
    let sum: f64 = if size.num_channels == 3 {
        pixels
            .as_chunks::<3>()
            .0
            .iter()
            .map(|pixel| gray(*pixel))
            .sum()
    } else {
        pixels.iter().map(|value| f64::from(*value)).sum()
    };
    (sum / num_pixels).round()
}

fn stretch(pixels: &mut [u8], channel: usize, num_channels: usize) {
    let values = || pixels[channel..].iter().step_by(num_channels);
    let (Some(&low), Some(&high)) = (values().min(), values().max()) else {
        return;
    };
    if low == high {
        return;
    }
    let scale = 255.0 / f64::from(high - low);
    for value in pixels[channel..].iter_mut().step_by(num_channels) {
        *value = blended(f64::from(*value - low) * scale, 0.0, 1.0);
    }
}
