//! Where a curve lies in a picture of [`WIDTH`] by [`HEIGHT`] points. Pure.

use super::{Curve, label, range};

/// Width of a picture.
pub(super) const WIDTH: f64 = 800.0;
/// Height of a picture.
pub(super) const HEIGHT: f64 = 400.0;
/// Left, top, right and bottom of the axes.
pub(super) const FRAME: (f64, f64, f64, f64) = (70.0, 40.0, 780.0, 360.0);
/// Marks of each axis, beside that of its begin.
const NUM_MARKS: u32 = 4;

/// The scales of both axes.
pub(super) struct Axes {
    x: (f64, f64),
    y: (f64, f64),
}

/// A mark of both axes: where, and what stands there.
pub(super) struct Mark {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) x_label: String,
    pub(super) y_label: String,
}

impl Axes {
    pub(super) fn of(curve: &Curve) -> Self {
        Self {
            x: range(curve.points.iter().map(|(x, _)| *x)),
            y: range(curve.points.iter().map(|(_, y)| *y)),
        }
    }

    /// Where a point is.
    pub(super) fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (left, top, right, bottom) = FRAME;
        let across = (x - self.x.0) / (self.x.1 - self.x.0);
        let up = (y - self.y.0) / (self.y.1 - self.y.0);
        (left + across * (right - left), bottom - up * (bottom - top))
    }

    /// The corners of the line through all points.
    pub(super) fn line(&self, curve: &Curve) -> Vec<(f64, f64)> {
        let mut corners: Vec<(f64, f64)> = Vec::new();
        for point in &curve.points {
            let here = self.at(*point);
            if let Some((_, before)) = corners.last().copied().filter(|_| curve.is_stepped) {
                corners.push((here.0, before));
            }
            corners.push(here);
        }
        corners
    }

    pub(super) fn marks(&self) -> Vec<Mark> {
        let marks = (0..=NUM_MARKS).map(|mark| {
            let part = f64::from(mark) / f64::from(NUM_MARKS);
            let value = |(low, high): (f64, f64)| low + (high - low) * part;
            let (x, y) = (value(self.x), value(self.y));
            let (at_x, at_y) = self.at((x, y));
            Mark {
                x: at_x,
                y: at_y,
                x_label: label(x),
                y_label: label(y),
            }
        });
        marks.collect()
    }
}
