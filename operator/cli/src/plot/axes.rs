//! Positions of a curve and its ticks in a picture of [`WIDTH`] by [`HEIGHT`] points. Pure.

use super::{Curve, label, range};

pub(super) const WIDTH: f64 = 800.0;
pub(super) const HEIGHT: f64 = 400.0;
/// Left, top, right and bottom of the axes.
pub(super) const FRAME: (f64, f64, f64, f64) = (70.0, 40.0, 780.0, 360.0);
/// Ticks of each axis, besides the one at its begin.
const NUM_TICKS: u32 = 4;

/// The ranges of both axes.
pub(super) struct Axes {
    x: (f64, f64),
    y: (f64, f64),
}

/// A tick of both axes: its position, and its labels.
pub(super) struct Tick {
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

    /// The position of a point in the picture.
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

    pub(super) fn ticks(&self) -> Vec<Tick> {
        let ticks = (0..=NUM_TICKS).map(|tick| {
            let part = f64::from(tick) / f64::from(NUM_TICKS);
            let value = |(low, high): (f64, f64)| low + (high - low) * part;
            let (x, y) = (value(self.x), value(self.y));
            let (at_x, at_y) = self.at((x, y));
            Tick {
                x: at_x,
                y: at_y,
                x_label: label(x),
                y_label: label(y),
            }
        });
        ticks.collect()
    }
}
