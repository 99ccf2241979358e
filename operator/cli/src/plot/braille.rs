//! Draws a curve in the terminal, with eight points in each character (Unicode's Braille patterns).
//! Pure.

use super::{Curve, label, range};

/// Bits of the points in a character, by row and column, as offsets from U+2800.
const BITS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

/// The curve with axes in `width` columns and `height` lines.
pub(crate) fn draw(curve: &Curve, width: usize, height: usize) -> String {
    let Curve {
        title,
        x_unit,
        points,
        is_stepped,
    } = curve;
    let (left, right) = range(points.iter().map(|(x, _)| *x));
    let (low, high) = range(points.iter().map(|(_, y)| *y));
    let labels = [label(high), label(low)];
    let margin = labels.iter().map(String::len).max().unwrap_or(0);
    let columns = width.saturating_sub(margin + 2).max(10);
    let rows = height.saturating_sub(3).max(3);
    let mut canvas = Canvas::new(columns, rows);
    let at = |x: f64, y: f64| {
        let across = (x - left) / (right - left);
        let down = (high - y) / (high - low);
        (
            across * (columns * 2 - 1) as f64,
            down * (rows * 4 - 1) as f64,
        )
    };
    let mut last = None::<(f64, f64)>;
    for (x, y) in points {
        let here = at(*x, *y);
        if let Some(from) = last {
            if *is_stepped {
                canvas.line(from, (here.0, from.1));
                canvas.line((here.0, from.1), here);
            } else {
                canvas.line(from, here);
            }
        }
        canvas.dot(here);
        last = Some(here);
    }
    let mut lines = vec![title.clone()];
    for (row, text) in canvas.lines().into_iter().enumerate() {
        let shown = match row {
            0 => labels[0].as_str(),
            row if row == rows - 1 => labels[1].as_str(),
            _ => "",
        };
        lines.push(format!("{shown:>margin$} │{text}"));
    }
    lines.push(format!("{:>margin$} └{}", "", "─".repeat(columns)));
    let (begin, end) = (label(left), format!("{} {x_unit}", label(right)));
    let gap = (columns + 1).saturating_sub(begin.len() + end.len());
    lines.push(format!("{:>margin$} {begin}{}{end}", "", " ".repeat(gap)));
    lines.join("\n")
}

struct Canvas {
    columns: usize,
    cells: Vec<u8>,
}

impl Canvas {
    fn new(columns: usize, rows: usize) -> Self {
        Self {
            columns,
            cells: vec![0; columns * rows],
        }
    }

    fn dot(&mut self, (x, y): (f64, f64)) {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rounded and not negative; a point outside the canvas has no cell"
        )]
        let (x, y) = (x.round().max(0.0) as usize, y.round().max(0.0) as usize);
        let cell = self.cells.get_mut(y / 4 * self.columns + x / 2);
        if let Some(cell) = cell.filter(|_| x / 2 < self.columns) {
            *cell |= BITS[y % 4][x % 2];
        }
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64)) {
        let length = (to.0 - from.0)
            .abs()
            .max((to.1 - from.1).abs())
            .ceil()
            .max(1.0);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most the size of the canvas"
        )]
        let steps = length as usize;
        for step in 0..=steps {
            let part = step as f64 / steps as f64;
            self.dot((
                from.0 + (to.0 - from.0) * part,
                from.1 + (to.1 - from.1) * part,
            ));
        }
    }

    fn lines(&self) -> Vec<String> {
        let rows = self.cells.chunks(self.columns);
        rows.map(|row| {
            row.iter()
                .map(|cell| char::from_u32(0x2800 + u32::from(*cell)).unwrap_or(' '))
                .collect()
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(f64, f64)], is_stepped: bool) -> Curve {
        Curve {
            title: "loss of digits".to_owned(),
            x_unit: "steps",
            points: points.to_vec(),
            is_stepped,
        }
    }

    #[test]
    fn falling_curve_runs_from_upper_left_to_lower_right() {
        let text = draw(&curve(&[(1.0, 4.125), (100.0, 1.0)], false), 18, 6);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "loss of digits");
        assert!(lines[1].starts_with("4.125 │⠑"), "{text}");
        assert!(
            lines[3].starts_with("    1 │⠀") && !lines[3].ends_with('⠀'),
            "{text}"
        );
        assert_eq!(lines[5], "      1  100 steps");
        assert!(
            lines.iter().all(|line| line.chars().count() <= 18),
            "{text}"
        );
    }

    #[test]
    fn one_point_and_equal_points_are_drawn() {
        for points in [&[(5.0, 0.0)][..], &[(0.0, 2.0), (1.0, 2.0)][..]] {
            let text = draw(&curve(points, true), 40, 8);
            let is_drawn = |c: char| ('\u{2801}'..='\u{28ff}').contains(&c);
            assert!(text.contains(is_drawn), "{text}");
        }
    }
}
