//! Augmentation of 8-bit images `[H, W, C]`. Each operation draws from the sample's own stream of
//! random numbers. Names and ranges are those of torchvision.

use crate::image::{Rectangle, Size};
use crate::random::Random;

mod color;
mod warp;

pub use color::Color;
pub use warp::Warp;

/// Part of the image's area that a resized crop keeps: `RandomResizedCrop` (Szegedy et al., 2015).
const SCALE: (f64, f64) = (0.08, 1.0);
/// Ratio of width to height of a crop before it is resized.
const RATIO: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);

/// Draws a part of the image with random area and shape. The sample consists of its resized pixels.
#[must_use]
pub fn resized_crop(size: Size, random: &mut Random) -> Rectangle {
    let (width, height) = (f64::from(size.width), f64::from(size.height));
    for _ in 0..10 {
        let area = width * height * random.between(SCALE.0, SCALE.1);
        let ratio = random.between(RATIO.0.ln(), RATIO.1.ln()).exp();
        let part = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round());
        if let (Some(part_width), Some(part_height)) =
            (fitting(part.0, size.width), fitting(part.1, size.height))
        {
            return Rectangle {
                top: below(random, size.height - part_height + 1),
                left: below(random, size.width - part_width + 1),
                width: part_width,
                height: part_height,
            };
        }
    }
    let (part_width, part_height) = if width / height < RATIO.0 {
        (width, (width / RATIO.0).round())
    } else if width / height > RATIO.1 {
        ((height * RATIO.1).round(), height)
    } else {
        (width, height)
    };
    let part_width = fitting(part_width, size.width).unwrap_or(size.width);
    let part_height = fitting(part_height, size.height).unwrap_or(size.height);
    Rectangle {
        left: (size.width - part_width) / 2,
        top: (size.height - part_height) / 2,
        width: part_width,
        height: part_height,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked"
)]
fn fitting(edge: f64, limit: u32) -> Option<u32> {
    (edge >= 1.0 && edge <= f64::from(limit)).then_some(edge as u32)
}

fn below(random: &mut Random, end: u32) -> u32 {
    u32::try_from(random.below(u64::from(end))).unwrap_or(0)
}

/// Pads each side with zeros by an eighth of the edge, and cuts out a part of the image's size.
/// This is the usual augmentation for images of 32×32 (He et al., 2015: 4 pixels).
pub fn pad_and_crop(from: &[u8], size: Size, random: &mut Random, into: &mut [u8]) {
    let (pad_x, pad_y) = (size.width / 8, size.height / 8);
    let shift_y = i64::from(below(random, 2 * pad_y + 1)) - i64::from(pad_y);
    let shift_x = i64::from(below(random, 2 * pad_x + 1)) - i64::from(pad_x);
    let num_channels = size.num_channels as usize;
    let (width, height) = (i64::from(size.width), i64::from(size.height));
    let mut pixels = into.chunks_exact_mut(num_channels);
    for y in 0..height {
        for x in 0..width {
            let Some(pixel) = pixels.next() else { return };
            let (from_x, from_y) = (x + shift_x, y + shift_y);
            if (0..width).contains(&from_x) && (0..height).contains(&from_y) {
                let start = usize::try_from(from_y * width + from_x).unwrap_or(0) * num_channels;
                pixel.copy_from_slice(&from[start..start + num_channels]);
            } else {
                pixel.fill(0);
            }
        }
    }
}

/// Mirrors the image left to right.
pub fn flip(pixels: &mut [u8], size: Size) {
    let num_channels = size.num_channels as usize;
    for row in pixels.chunks_exact_mut(size.width as usize * num_channels) {
        if num_channels == 3 {
            row.as_chunks_mut::<3>().0.reverse();
        } else {
            row.reverse();
        }
    }
}

/// Number of operations on one image.
const NUM_OPERATIONS: usize = 2;
/// Strength from 0 to 1: 9 of 30 steps.
const MAGNITUDE: f64 = 0.3;

/// Applies `RandAugment` (Cubuk et al., 2019) with its usual 2 operations of magnitude 9, without
/// sharpness and equalize. `spare` is a buffer that is overwritten.
pub fn rand_augment(pixels: &mut [u8], size: Size, random: &mut Random, spare: &mut Vec<u8>) {
    for _ in 0..NUM_OPERATIONS {
        let operation = random.below(12);
        let sign = if random.coin() { 1.0 } else { -1.0 };
        let signed = sign * MAGNITUDE;
        let width = f64::from(size.width);
        let height = f64::from(size.height);
        let warp = match operation {
            0 => Warp::shear_x(0.3 * signed),
            1 => Warp::shear_y(0.3 * signed),
            2 => Warp::translation((150.0 / 331.0 * width * signed).trunc(), 0.0),
            3 => Warp::translation(0.0, (150.0 / 331.0 * height * signed).trunc()),
            4 => Warp::rotation((30.0 * signed).to_radians()),
            other => {
                let color = match other {
                    5 => Color::Brightness(1.0 + 0.9 * signed),
                    6 => Color::Saturation(1.0 + 0.9 * signed),
                    7 => Color::Contrast(1.0 + 0.9 * signed),
                    8 => Color::Posterize { num_bits: 7 },
                    9 => Color::Solarize { threshold: 179 },
                    10 => Color::AutoContrast,
                    _ => continue,
                };
                color.apply(pixels, size);
                continue;
            }
        };
        spare.clear();
        spare.extend_from_slice(pixels);
        warp.apply(spare, size, pixels);
    }
}

#[cfg(test)]
mod tests;
