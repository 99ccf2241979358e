//! Plots a job's numbers over time, from the lines that rank 0 has logged.

use jiff::Timestamp;

use crate::logs::{Line, Speaker};

mod axes;
pub(crate) mod braille;
pub(crate) mod history;
pub(crate) mod svg;

/// The number to plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum What {
    /// Training loss over steps.
    Loss,
    /// Samples or tokens per second over time.
    Throughput,
    /// Number of ranks over time.
    WorldSize,
}

/// A report of rank 0 with its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moment {
    /// `None` if the log line has no time.
    pub(crate) at: Option<Timestamp>,
    pub(crate) reported: Reported,
}

/// What rank 0 reported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reported {
    Step {
        /// Number of committed steps.
        step: f64,
        /// Training loss, if it is a number.
        loss: Option<f64>,
        /// Samples or tokens per second.
        speed: f64,
        /// Whether the speed is in tokens.
        is_in_tokens: bool,
    },
    /// The start of a generation.
    Generation { number: u64, world_size: u32 },
}

/// A curve to draw.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    pub(crate) title: String,
    /// Unit of x: `steps`, or `s` since the first moment.
    pub(crate) x_unit: &'static str,
    /// Points with growing x.
    pub(crate) points: Vec<(f64, f64)>,
    /// Whether a value holds until the next point.
    pub(crate) is_stepped: bool,
}

/// The curve of some moments, which are sorted by time.
pub(crate) fn curve(what: What, name: &str, moments: &[Moment]) -> Curve {
    let begin = moments.iter().find_map(|moment| moment.at);
    let seconds = |at: Option<Timestamp>| {
        let (at, begin) = at.zip(begin)?;
        Some(at.duration_since(begin).as_secs_f64())
    };
    let is_in_tokens = moments.iter().any(|moment| {
        matches!(
            moment.reported,
            Reported::Step {
                is_in_tokens: true,
                ..
            }
        )
    });
    let points = moments
        .iter()
        .filter_map(|Moment { at, reported }| match (what, *reported) {
            (What::Loss, Reported::Step { step, loss, .. }) => Some((step, loss?)),
            (What::Throughput, Reported::Step { speed, .. }) => Some((seconds(*at)?, speed)),
            (What::WorldSize, Reported::Generation { world_size, .. }) => {
                Some((seconds(*at)?, world_size.into()))
            }
            _ => None,
        });
    let points: Vec<(f64, f64)> = points
        .filter(|(x, y)| x.is_finite() && y.is_finite())
        .collect();
    let (title, x_unit) = match what {
        What::Loss => ("loss", "steps"),
        What::Throughput if is_in_tokens => ("tokens/s", "s"),
        What::Throughput => ("samples/s", "s"),
        What::WorldSize => ("world size", "s"),
    };
    Curve {
        title: format!("{title} of {name}"),
        x_unit,
        points: forward(points),
        is_stepped: what == What::WorldSize,
    }
}

/// Removes points of steps that were repeated after a resume from an older checkpoint.
fn forward(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::with_capacity(points.len());
    for (x, y) in points {
        while kept.last().is_some_and(|(last, _)| *last >= x) {
            kept.pop();
        }
        kept.push((x, y));
    }
    kept
}

impl Moment {
    /// Parses a log line of rank 0; `None` for other lines.
    pub(crate) fn of(line: &Line) -> Option<Self> {
        if line.speaker != Speaker::Rank(0) {
            return None;
        }
        let reported = parse(line.text.trim())?;
        let at = line.at;
        Some(Self { at, reported })
    }
}

fn parse(text: &str) -> Option<Reported> {
    if let Some(rest) = text.strip_prefix("generation ") {
        let (number, size) = rest.split_once(": rank 0 of ")?;
        return Some(Reported::Generation {
            number: number.parse().ok()?,
            world_size: size.split(',').next()?.parse().ok()?,
        });
    }
    let rest = text.strip_prefix("step ")?;
    let (step, rest) = rest.split_once(" of ")?;
    let (_, rest) = rest.split_once(": loss ")?;
    let loss = rest.split(", ").next()?.parse().ok();
    let speed = rest.rsplit(", ").next()?;
    let (speed, unit) = speed.split_once(' ')?;
    Some(Reported::Step {
        step: step.parse().ok()?,
        loss,
        speed: speed.parse().ok()?,
        is_in_tokens: unit.starts_with("tokens/s"),
    })
}

/// Smallest and largest of some numbers; wider if they are equal, so that a curve can be drawn.
fn range(numbers: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let low = numbers.clone().fold(f64::INFINITY, f64::min);
    let high = numbers.fold(f64::NEG_INFINITY, f64::max);
    if high > low {
        (low, high)
    } else {
        let room = low.abs().max(1.0) * 0.5;
        (low - room, high + room)
    }
}

/// A number for an axis: about four significant digits, and no decimals for a whole number.
fn label(number: f64) -> String {
    let size = number.abs();
    let is_whole = number.fract() == 0.0 && size < 100_000.0;
    if is_whole {
        format!("{number:.0}")
    } else if (0.001..10.0).contains(&size) {
        format!("{number:.3}")
    } else if (10.0..100_000.0).contains(&size) {
        format!("{number:.0}")
    } else {
        format!("{number:.2e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(second: i64, text: &str) -> Line {
        let at = Timestamp::from_second(second).unwrap();
        Line::parse(&format!("{at} {text}"), "p", 0)
    }

    fn lines() -> Vec<Line> {
        vec![
            line(0, "[worker 0.0] loads"),
            line(
                1,
                "[rank 0] generation 1: rank 0 of 2, store at 10.0.0.1:29500",
            ),
            line(
                2,
                "[rank 0] step 10 of 100 (10 %), epoch 0: loss 2.5000, rate 0.1000, 120 samples/s",
            ),
            line(
                3,
                "[rank 1] step 11 of 100 (11 %), epoch 0: loss 9.0000, rate 0.1000, 120 samples/s",
            ),
            line(
                4,
                "[rank 0] step 20 of 100 (20 %), epoch 0: loss 1.5000, rate 0.1000, 140 samples/s",
            ),
            line(
                5,
                "[rank 0] generation 2: rank 0 of 1, store at 10.0.0.1:29500",
            ),
            line(
                6,
                "[rank 0] step 15 of 100 (15 %), epoch 0: loss -, rate 0.1000, 70 samples/s",
            ),
            line(
                7,
                "[rank 0] step 20 of 100: test accuracy 90.00 %, test loss 0.5 (10 samples)",
            ),
            line(
                8,
                "[rank 0] step 18 of 100 (18 %), epoch 0: loss 1.7500, rate 0.1000, 80 samples/s",
            ),
        ]
    }

    #[test]
    fn curves_come_from_lines_of_rank_0() {
        let moments: Vec<Moment> = lines().iter().filter_map(Moment::of).collect();
        let of = |what| curve(what, "digits", &moments);
        let loss = of(What::Loss);
        // Steps 18 to 20 were repeated after a resume, so the old point of step 20 is dropped.
        assert_eq!(loss.points, [(10.0, 2.5), (18.0, 1.75)]);
        let speed = of(What::Throughput);
        assert_eq!(speed.title, "samples/s of digits");
        assert_eq!(
            speed.points,
            [(1.0, 120.0), (3.0, 140.0), (5.0, 70.0), (7.0, 80.0)]
        );
        assert_eq!(of(What::WorldSize).points, [(0.0, 2.0), (4.0, 1.0)]);
    }

    #[test]
    fn language_model_throughput_is_in_tokens() {
        let line = line(
            0,
            "[rank 0] step 1 of 2 (50 %), epoch 0: loss 2, rate 0.1, 9000 tokens/s",
        );
        let curve = curve(What::Throughput, "gpt", &[Moment::of(&line).unwrap()]);
        assert_eq!(
            (curve.title.as_str(), curve.points[0].1),
            ("tokens/s of gpt", 9_000.0)
        );
    }
}
