//! `plot`: draws loss, throughput or world size over time.

use std::process::ExitCode;

use anyhow::ensure;
use clap::ValueEnum;
use console::Term;

use super::Outcome;
use crate::cluster::Cluster;
use crate::out;
use crate::plot::{What, braille, curve, history, svg};

/// Lines and columns when standard output is not a terminal.
const SIZE: (u16, u16) = (24, 80);
/// Most lines of a plot.
const MAX_HEIGHT: u16 = 30;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Name of the job.
    name: String,
    /// The quantity to plot.
    #[arg(long, value_enum, default_value_t = What::Loss)]
    what: What,
    /// Print a picture or the points instead.
    #[arg(short, long, value_enum)]
    output: Option<Picture>,
}

/// Formats other than text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Picture {
    /// Print an SVG picture.
    Svg,
    /// Print the points as JSON.
    Json,
}

pub(crate) async fn run(cluster: &Cluster, options: &Options) -> Outcome {
    let Options { name, what, output } = options;
    let source = cluster.logs(name).await?;
    let note = |text: &str| out::aside(&out::plain(text));
    let moments = history::read(&source, note).await?;
    let curve = curve(*what, name, &moments);
    ensure!(
        !curve.points.is_empty(),
        "rank 0 of {name} has logged nothing to plot: the built-in trainer logs as soon as it trains; \
         see `kubectl roundhouse status {name}`"
    );
    match output {
        None => {
            let (height, width) = Term::stdout().size_checked().unwrap_or(SIZE);
            out::write(&braille::draw(
                &curve,
                width.into(),
                height.min(MAX_HEIGHT).into(),
            ))?;
        }
        Some(Picture::Svg) => out::write(&svg::draw(&curve))?,
        Some(Picture::Json) => {
            let document = serde_json::json!({"title": curve.title, "xUnit": curve.x_unit, "points": curve.points});
            out::write(&document.to_string())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
