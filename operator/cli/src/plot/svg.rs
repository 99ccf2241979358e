//! Draws a curve as an SVG picture. Pure.

use std::fmt::Write;

use super::Curve;
use super::axes::{Axes, FRAME, HEIGHT, WIDTH};

/// The curve with axes and a grid.
pub(crate) fn draw(curve: &Curve) -> String {
    let (left, top, right, bottom) = FRAME;
    let axes = Axes::of(curve);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"24\" font-size=\"16\">{}</text>\n",
        escaped(&curve.title)
    );
    for tick in axes.ticks() {
        let (x, y) = (tick.x, tick.y);
        let _ = write!(
            svg,
            "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            left - 8.0,
            y + 4.0,
            tick.y_label,
            bottom + 18.0,
            tick.x_label
        );
    }
    let corners = axes.line(curve);
    let path: Vec<String> = corners
        .iter()
        .map(|(x, y)| format!("{x:.1} {y:.1}"))
        .collect();
    let _ = write!(
        svg,
        "<path d=\"M{left} {top}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>\n\
         <path d=\"M{}\" fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"2\"/>\n\
         <text x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n</svg>\n",
        path.join("L"),
        bottom + 34.0,
        escaped(curve.x_unit)
    );
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn svg_points_have_the_right_positions() {
        let curve = Curve {
            title: "a < b".to_owned(),
            x_unit: "steps",
            points: vec![(0.0, 1.0), (10.0, 3.0), (20.0, 2.0)],
            is_stepped: false,
        };
        let svg = draw(&curve);
        assert!(
            svg.contains("d=\"M70.0 360.0L425.0 40.0L780.0 200.0\""),
            "{svg}"
        );
        assert!(svg.contains("a &lt; b") && svg.trim_end().ends_with("</svg>"));
        let stepped = Curve {
            is_stepped: true,
            ..curve
        };
        let svg = draw(&stepped);
        assert!(
            svg.contains("M70.0 360.0L425.0 360.0L425.0 40.0L780.0 40.0L780.0 200.0"),
            "{svg}"
        );
    }
}
