//! `logs`: prints the lines of all ranks in one stream.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::Outcome;
use crate::cluster::Cluster;
use crate::logs::follow::follow;
use crate::logs::line::Ranks;
use crate::logs::merge::merge;
use crate::logs::{Begin, Line, Speaker};
use crate::out;

/// Time between two lists of the pods.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Name of the job.
    name: String,
    /// Print only lines of these ranks, such as `0,3-5`. A process has its rank from the generation
    /// in which it wrote the line. Without this option, lines of agents and of processes without a
    /// rank are shown, too.
    #[arg(long, value_name = "RANKS")]
    rank: Option<Ranks>,
    /// Follow the lines until the job has ended, through restarts, replacements and new
    /// generations.
    #[arg(short, long)]
    follow: bool,
    /// Print the lines of the containers before the last restart.
    #[arg(short, long, conflicts_with = "follow")]
    previous: bool,
    /// Print only lines that are not older than this, such as `10m` or `1h30m`.
    #[arg(long, value_name = "SPAN", value_parser = span)]
    since: Option<SignedDuration>,
    /// Print only this many last lines of each pod.
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(i64).range(0..))]
    tail: Option<i64>,
    /// Print a JSON document for each line.
    #[arg(short, long, value_enum)]
    output: Option<LineFormat>,
}

/// Formats of the lines for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LineFormat {
    /// A JSON document for each line.
    Json,
}

fn span(text: &str) -> Result<SignedDuration, String> {
    let wrong = || format!("{text:?} is not a duration: give one such as 90s, 10m or 1h30m");
    let span: SignedDuration = text.parse().map_err(|_| wrong())?;
    if span.is_negative() {
        Err(wrong())
    } else {
        Ok(span)
    }
}

pub(crate) async fn run(cluster: &Cluster, options: &Options) -> Outcome {
    let source = cluster.logs(&options.name).await?;
    let now = Timestamp::now();
    let since = options.since.and_then(|since| now.checked_sub(since).ok());
    let begin = match options.tail {
        // `--tail 0` prints only later lines, so begin at the present time.
        Some(0) => Begin {
            since: Some(now),
            tail: None,
        },
        tail => Begin { since, tail },
    };
    let mut out = anstream::stdout().lock();
    let mut num_shown = 0_u64;
    let show = |line: &Line| {
        if options
            .rank
            .as_ref()
            .is_some_and(|ranks| !ranks.contains(line.speaker))
        {
            return Ok(());
        }
        num_shown += 1;
        let text = match options.output {
            None => line.shown(),
            Some(LineFormat::Json) => document(line).to_string(),
        };
        Ok(writeln!(out, "{text}")?)
    };
    let note = |text: &str| out::aside(&out::plain(text));
    if options.follow {
        follow(&source, begin, POLL_INTERVAL, show, note).await?;
    } else {
        merge(&source, begin, options.previous, show, note).await?;
    }
    if num_shown == 0 {
        let name = &options.name;
        let hint = match (&options.rank, options.previous) {
            (Some(_), _) => format!("`kubectl roundhouse status {name}` lists the ranks"),
            (None, true) => "no container was restarted".to_owned(),
            (None, false) => {
                format!("`kubectl roundhouse why {name}` says whether pods have started")
            }
        };
        out::aside(&format!("There are no lines: {hint}."));
    }
    Ok(ExitCode::SUCCESS)
}

fn document(line: &Line) -> serde_json::Value {
    let Line {
        at,
        pod,
        speaker,
        text,
    } = line;
    let (rank, process, agent) = match speaker {
        Speaker::Rank(rank) => (Some(rank), None, false),
        Speaker::Process(worker, local) => (None, Some([worker, local]), false),
        Speaker::Agent(_) => (None, None, true),
    };
    json!({"time": at, "pod": pod, "rank": rank, "process": process, "agent": agent, "line": text})
}
