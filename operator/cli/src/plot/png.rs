//! Draws a curve as a PNG picture. Pure.

use std::convert::Infallible;

use anyhow::Context;
use embedded_graphics::Drawable;
use embedded_graphics::Pixel;
use embedded_graphics::draw_target::DrawTarget;
use embedded_graphics::geometry::{OriginDimensions, Point, Size};
use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::ascii::{FONT_7X13, FONT_9X18};
use embedded_graphics::pixelcolor::{Rgb888, RgbColor, WebColors};
use embedded_graphics::primitives::{Polyline, Primitive, PrimitiveStyle};
use embedded_graphics::text::{Alignment, Text};

use super::Curve;
use super::axes::{Axes, FRAME, HEIGHT, WIDTH};

const LINE: Rgb888 = Rgb888::new(0x1f, 0x77, 0xb4);
const GRID: Rgb888 = Rgb888::CSS_LIGHT_GRAY;

/// The curve with axes and a grid. Characters that are not ASCII are shown as `?`.
///
/// # Errors
/// The encoder fails, which would be a defect.
pub(crate) fn draw(curve: &Curve) -> anyhow::Result<Vec<u8>> {
    let mut picture = Picture::new();
    let (left, top, right, bottom) = FRAME;
    let axes = Axes::of(curve);
    for tick in axes.ticks() {
        picture.line(&[(left, tick.y), (right, tick.y)], GRID, 1);
        picture.text(&tick.y_label, (left - 8.0, tick.y + 4.0), Alignment::Right);
        picture.text(&tick.x_label, (tick.x, bottom + 18.0), Alignment::Center);
    }
    picture.line(
        &[(left, top), (left, bottom), (right, bottom)],
        Rgb888::BLACK,
        1,
    );
    picture.line(&axes.line(curve), LINE, 2);
    picture.text(curve.x_unit, (right, bottom + 34.0), Alignment::Right);
    picture.title(&curve.title, (left, 24.0));
    picture.encoded()
}

struct Picture {
    size: Size,
    /// Red, green and blue of each point, by rows.
    bytes: Vec<u8>,
}

impl Picture {
    fn new() -> Self {
        let corner = point((WIDTH, HEIGHT));
        let size = Size::new(corner.x.unsigned_abs(), corner.y.unsigned_abs());
        let num_points = size.width as usize * size.height as usize;
        Self {
            size,
            bytes: vec![0xff; num_points * 3],
        }
    }

    /// Draws a thick line as several thin lines, because `embedded-graphics` overflows at the joins
    /// of long thick lines.
    fn line(&mut self, corners: &[(f64, f64)], colour: Rgb888, width: i32) {
        let style = PrimitiveStyle::with_stroke(colour, 1);
        for offset in (0..width).flat_map(|x| (0..width).map(move |y| Point::new(x, y))) {
            let corners: Vec<Point> = corners
                .iter()
                .map(|corner| point(*corner) + offset)
                .collect();
            let Ok(()) = Polyline::new(&corners).into_styled(style).draw(self);
        }
    }

    fn text(&mut self, text: &str, at: (f64, f64), alignment: Alignment) {
        let style = MonoTextStyle::new(&FONT_7X13, Rgb888::BLACK);
        let Ok(_) = Text::with_alignment(text, point(at), style, alignment).draw(self);
    }

    fn title(&mut self, text: &str, at: (f64, f64)) {
        let style = MonoTextStyle::new(&FONT_9X18, Rgb888::BLACK);
        let Ok(_) = Text::new(text, point(at), style).draw(self);
    }

    fn encoded(&self) -> anyhow::Result<Vec<u8>> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.size.width, self.size.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let writer = encoder.write_header();
        let mut writer = writer.context("the picture")?;
        writer
            .write_image_data(&self.bytes)
            .context("the picture")?;
        writer.finish().context("the picture")?;
        Ok(file)
    }
}

impl OriginDimensions for Picture {
    fn size(&self) -> Size {
        self.size
    }
}

impl DrawTarget for Picture {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I>(&mut self, pixels: I) -> Result<(), Infallible>
    where
        I: IntoIterator<Item = Pixel<Rgb888>>,
    {
        for Pixel(point, colour) in pixels {
            let (Ok(x), Ok(y)) = (usize::try_from(point.x), usize::try_from(point.y)) else {
                continue;
            };
            let width = self.size.width as usize;
            let at = (y * width + x) * 3;
            if let Some(bytes) = self.bytes.get_mut(at..at + 3).filter(|_| x < width) {
                bytes.copy_from_slice(&[colour.r(), colour.g(), colour.b()]);
            }
        }
        Ok(())
    }
}

fn point((x, y): (f64, f64)) -> Point {
    #[allow(clippy::cast_possible_truncation, reason = "within the picture")]
    let whole = |number: f64| number.round() as i32;
    Point::new(whole(x), whole(y))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn png_reads_back_with_the_curve() {
        let curve = Curve {
            title: "loss of digits".to_owned(),
            x_unit: "steps",
            points: vec![(0.0, 1.0), (10.0, 3.0), (20.0, 2.0)],
            is_stepped: false,
        };
        let file = draw(&curve).unwrap();
        let decoder = png::Decoder::new(std::io::Cursor::new(file));
        let mut reader = decoder.read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        assert_eq!((info.width, info.height), (800, 400));
        let colour = |x: usize, y: usize| &bytes[(y * 800 + x) * 3..][..3];
        let line = [LINE.r(), LINE.g(), LINE.b()];
        // The highest point is in the middle, and the picture above it is empty.
        assert!((423..=427).any(|x| colour(x, 41) == line));
        assert_eq!(colour(425, 30), [0xff, 0xff, 0xff]);
    }
}
