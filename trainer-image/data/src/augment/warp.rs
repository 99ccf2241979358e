//! Geometric operations. Each pixel is taken from the nearest pixel of another place; places
//! outside of the image are 0.

use crate::image::Size;

/// A linear map of places around the center, from the result to the original.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warp {
    matrix: [[f64; 2]; 2],
    shift: [f64; 2],
}

impl Warp {
    /// Moves rows sideways in proportion to their distance from the center.
    #[must_use]
    pub const fn shear_x(factor: f64) -> Self {
        Self {
            matrix: [[1.0, factor], [0.0, 1.0]],
            shift: [0.0; 2],
        }
    }

    /// Moves columns up or down in proportion to their distance from the center.
    #[must_use]
    pub const fn shear_y(factor: f64) -> Self {
        Self {
            matrix: [[1.0, 0.0], [factor, 1.0]],
            shift: [0.0; 2],
        }
    }

    /// Moves the image by whole pixels or parts of pixels.
    #[must_use]
    pub const fn translation(x: f64, y: f64) -> Self {
        Self {
            matrix: [[1.0, 0.0], [0.0, 1.0]],
            shift: [-x, -y],
        }
    }

    /// Rotates the image by an angle in radians.
    #[must_use]
    pub fn rotation(angle: f64) -> Self {
        let (sin, cos) = angle.sin_cos();
        Self {
            matrix: [[cos, -sin], [sin, cos]],
            shift: [0.0; 2],
        }
    }

    /// Writes the warped image into a buffer.
    pub fn apply(&self, from: &[u8], size: Size, into: &mut [u8]) {
        let num_channels = size.num_channels as usize;
        let (width, height) = (f64::from(size.width), f64::from(size.height));
        let center = ((width - 1.0) / 2.0, (height - 1.0) / 2.0);
        let mut pixels = into.chunks_exact_mut(num_channels);
        for y in 0..size.height {
            for x in 0..size.width {
                let Some(pixel) = pixels.next() else { return };
                let (x, y) = (f64::from(x) - center.0, f64::from(y) - center.1);
                let [to_x, to_y] = self.matrix;
                let from_x = (to_x[0] * x + to_x[1] * y + self.shift[0] + center.0).round();
                let from_y = (to_y[0] * x + to_y[1] * y + self.shift[1] + center.1).round();
                let is_inside = (0.0..width).contains(&from_x) && (0.0..height).contains(&from_y);
                if is_inside {
                    let start = index(from_x, from_y, size) * num_channels;
                    pixel.copy_from_slice(&from[start..start + num_channels]);
                } else {
                    pixel.fill(0);
                }
            }
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the caller has checked that the place is inside the image"
)]
fn index(x: f64, y: f64, size: Size) -> usize {
    y as usize * size.width as usize + x as usize
}
