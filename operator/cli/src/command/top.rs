//! `top`: shows jobs or ranks live, in a table.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use console::{Term, truncate_str};
use jiff::Timestamp;

use super::{Outcome, status};
use crate::cluster::Cluster;
use crate::facts::{Facts, metrics::of_rank};
use crate::out::{self, heading, plain, style_of, styled, table};
use crate::view::list::{self, or_dash};
use crate::view::{JobView, numbers};

/// Escape codes: alternate screen on, cursor off; and the reverse.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l";
const LEAVE: &str = "\u{1b}[?25h\u{1b}[?1049l";
/// Escape codes: cursor to the first line; clear the rest of a line and of the screen.
const HOME: &str = "\u{1b}[H";
const CLEAR_LINE: &str = "\u{1b}[K";
const CLEAR_REST: &str = "\u{1b}[J";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Name of the job whose ranks are shown. Without it: all jobs of the namespace.
    name: Option<String>,
    /// Jobs of all namespaces.
    #[arg(short = 'A', long, conflicts_with = "name")]
    all_namespaces: bool,
    /// Show the table once and end. This is the default if standard output is not a terminal.
    #[arg(long)]
    once: bool,
    /// Seconds between two updates.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    interval: u64,
}

pub(crate) async fn run(cluster: &Cluster, options: &Options) -> Outcome {
    if options.once || !std::io::stdout().is_terminal() {
        out::write(&look(cluster, options).await?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let screen = Screen::enter()?;
    let shown = until_interrupted(cluster, options).await;
    drop(screen);
    shown?;
    Ok(ExitCode::SUCCESS)
}

/// The terminal's alternate screen; dropping it restores the normal screen, also after an error.
struct Screen;

impl Screen {
    fn enter() -> anyhow::Result<Self> {
        write!(std::io::stdout(), "{ENTER}")?;
        Ok(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = write!(std::io::stdout(), "{LEAVE}");
        let _ = std::io::stdout().flush();
    }
}

async fn until_interrupted(cluster: &Cluster, options: &Options) -> anyhow::Result<()> {
    let mut interval = tokio::time::interval(Duration::from_secs(options.interval));
    let mut has_shown = false;
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            ended = tokio::signal::ctrl_c() => return Ok(ended?),
        }
        let text = match look(cluster, options).await {
            Ok(text) => text,
            Err(error) if !has_shown => return Err(error),
            // An API server that restarts will answer again, so keep polling.
            Err(error) => format!("error: {}", plain(&format!("{error:#}"))),
        };
        has_shown = true;
        let (height, width) = Term::stdout().size();
        let mut out = std::io::stdout().lock();
        // Without colours only the colour codes go; the codes that place the lines stay.
        let is_plain = AutoStream::choice(&out) == ColorChoice::Never;
        let text = if is_plain {
            strip_str(&text).to_string()
        } else {
            text
        };
        write!(out, "{}", frame(&text, height.into(), width.into()))?;
        out.flush()?;
    }
}

async fn look(cluster: &Cluster, options: &Options) -> anyhow::Result<String> {
    let now = Timestamp::now();
    if let Some(name) = &options.name {
        return Ok(ranks(&cluster.facts(name).await?, now));
    }
    let lines = list::lines(&cluster.jobs(options.all_namespaces).await?);
    Ok(list::text(&lines, options.all_namespaces, now))
}

/// A job's ranks, with the shares of time that their agents report.
fn ranks(facts: &Facts, now: Timestamp) -> String {
    let view = JobView::of(facts);
    let state = styled(style_of(&view.state), &view.state);
    let mut head = format!(
        "{} {state}  generation {}  world size {}",
        heading(&plain(&view.name)),
        view.generation,
        view.world_size
    );
    if let Some(progress) = &view.progress {
        head = format!("{head}\n{}", numbers(progress));
    }
    let rows = view.ranks.iter().map(|rank| {
        let report = facts.reports.get(&rank.pod).zip(rank.rank);
        let metric =
            |name: &str| report.and_then(|(report, rank)| of_rank(&report.metrics, name, rank));
        let share =
            |name: &str| or_dash(metric(name).map(|share| format!("{:.0} %", share * 100.0)));
        let memory = metric("roundhouse_train_resident_memory_bytes");
        vec![
            or_dash(rank.rank),
            rank.pod.clone(),
            or_dash(rank.node.as_ref()),
            rank.state.clone(),
            or_dash(rank.step),
            or_dash(rank.lag),
            or_dash(rank.samples_per_second.map(|it| format!("{it:.0}"))),
            share("roundhouse_train_data_wait_ratio"),
            share("roundhouse_train_communication_ratio"),
            or_dash(memory.map(|bytes| format!("{:.0} MiB", bytes / 1_048_576.0))),
            rank.restarts.to_string(),
        ]
    });
    let columns = [
        "RANK",
        "POD",
        "NODE",
        "STATE",
        "STEP",
        "LAG",
        "SAMPLES/S",
        "DATA WAIT",
        "COMM",
        "MEMORY",
        "RESTARTS",
    ];
    let shown = if view.ranks.is_empty() {
        status::text(&view, now)
    } else {
        table(&columns, rows)
    };
    format!("{head}\n\n{shown}")
}

/// Fits a text into the terminal: cuts long lines and surplus lines.
fn frame(text: &str, height: usize, width: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let room = height.saturating_sub(1).max(1);
    let mut shown: Vec<String> = lines
        .iter()
        .take(room)
        .map(|line| truncate_str(line, width, "…").into_owned())
        .collect();
    if lines.len() > room {
        let more = lines.len() + 1 - room;
        if let Some(last) = shown.last_mut() {
            *last = truncate_str(&format!("… {more} more lines"), width, "…").into_owned();
        }
    }
    let end = format!("{CLEAR_LINE}\r\n");
    format!("{HOME}{}{end}{CLEAR_REST}", shown.join(&end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{job, now, progress};

    #[test]
    fn frame_fits_into_the_terminal() {
        let text = (0..10)
            .map(|n| format!("line {n} is long"))
            .collect::<Vec<_>>()
            .join("\n");
        let shown = frame(&text, 5, 8);
        let lines: Vec<String> = strip_str(&shown)
            .to_string()
            .lines()
            .map(str::to_owned)
            .collect();
        assert_eq!(lines, ["line 0 …", "line 1 …", "line 2 …", "… 7 mor…"]);
        assert!(!frame("a\nb", 5, 8).contains("more"));
    }

    #[test]
    fn rank_shows_shares_of_its_time() {
        let exposition = "roundhouse_train_data_wait_ratio{rank=\"1\"} 0.25\n\
                          roundhouse_train_communication_ratio{rank=\"1\"} 0.5\n\
                          roundhouse_train_resident_memory_bytes{rank=\"1\"} 2097152\n";
        let facts = job().trains(2).reports(1, progress(), exposition).facts();
        let text = ranks(&facts, now());
        let line = text.lines().find(|line| line.starts_with('1')).unwrap();
        let cells: Vec<&str> = line
            .split("  ")
            .map(str::trim)
            .filter(|it| !it.is_empty())
            .collect();
        assert_eq!(cells[7..10], ["25 %", "50 %", "2 MiB"], "{text}");
        let other = text.lines().find(|line| line.starts_with('0')).unwrap();
        assert!(!other.contains('%'), "{other}");
    }
}
